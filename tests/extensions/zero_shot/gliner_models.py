"""Small GLiNER directories with weights that depend only on their names, and their golden file.

The package `gliner` computed the predictions in `golden/gliner.json`. To compute them again, run
`python tests/extensions/zero_shot/gliner_models.py` in an environment with `gliner` (0.2.29), in
which bertkit is not needed.
"""

from __future__ import annotations

import json
import re
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

GOLDEN = Path(__file__).parent / "golden" / "gliner.json"

TEXTS = [
    "Ada Lovelace was born in London, not in São Paulo.",
    "Zoë Müller-Lüdenscheidt flog nach 東京 😀 – mit Air_France!",
    "Rain.",
    "one two three four five six seven eight nine ten " * 4,
    " \n ",
]
LABELS = ["person", "city", "date of birth"]
MANY = [f"type {number}" for number in range(30)]

CASES: list[dict[str, Any]] = [
    {"labels": LABELS},
    {"labels": LABELS, "threshold": 0.3, "flat": False},
    {"labels": LABELS, "threshold": 0.75, "flat": False},
    {"labels": LABELS, "threshold": 0.2, "multi_label": True},
    {"labels": LABELS, "threshold": 0.4, "flat": False, "multi_label": True},
    {"labels": LABELS[:1], "threshold": 0.1},
    {"labels": MANY, "threshold": 0.6},
]
"""Options of predictions for all texts."""

ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "pad_token_id": 0,
}
DEBERTA = {
    **ENCODER,
    "model_type": "deberta-v2",
    # Relative positions do not limit the number of tokens.
    "max_position_embeddings": 64,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "layer_norm_eps": 1e-7,
    # Keys that transformers 4 wrote.
    "pruned_heads": {},
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "pooler_dropout": 0,
    "pooler_hidden_size": 16,
}
BERT = {**ENCODER, "model_type": "bert", "type_vocab_size": 2, "max_position_embeddings": 400}

VARIANTS: dict[str, dict[str, Any]] = {
    "spans": {"encoder_config": DEBERTA, "hidden_size": 12, "max_width": 4, "max_len": 32},
    "spans without LSTM": {"hidden_size": 16, "num_rnn_layers": 0, "embed_ent_token": False},
    "tokens": {
        "encoder_config": DEBERTA,
        "span_mode": "token_level",
        "hidden_size": 16,
        "num_rnn_layers": 2,
        "max_len": 30,
        "ent_token": "[E]",
        "sep_token": "[S]",
    },
}
"""Settings by name. The second one has no encoder_config, but a BERT in `config.json`."""


def write_gliner(
    folder: Path,
    variant: str = "spans",
    *,
    changes: dict[str, Any] | None = None,
    edit: Callable[[dict[str, torch.Tensor]], Any] | None = None,
    pytorch: bool = False,
) -> Path:
    """Write the directory of a model.

    Args:
        folder: The directory.
        variant: Name in `VARIANTS`.
        changes: Settings to change.
        edit: Function that changes the weights.
        pytorch: Whether to write `pytorch_model.bin` instead of safetensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_name": "encoder", "dropout": 0.3, "max_types": 25, **VARIANTS[variant]}
    tokenizer = _write_tokenizer(folder, config)
    if "encoder_config" in config:
        size = tokenizer.get_vocab_size()
        index = tokenizer.token_to_id(config.get("ent_token", "<<ENT>>"))
        config |= {"vocab_size": size, "class_token_index": index}
        config["encoder_config"] = {**config["encoder_config"], "vocab_size": size}
    else:
        _write_json(folder / "config.json", BERT)
    _write_json(folder / "gliner_config.json", config | (changes or {}))
    tensors = gliner_weights(variant, tokenizer.get_vocab_size())
    if edit is not None:
        edit(tensors)
    if pytorch:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def gliner_weights(variant: str, vocab: int) -> dict[str, torch.Tensor]:
    """Return the weights of a variant, with the names of the files.

    Args:
        variant: Name in `VARIANTS`.
        vocab: Number of tokens, without those that the settings add.
    """
    config = VARIANTS[variant]
    size, layers = config["hidden_size"], config.get("num_rnn_layers", 1)
    encoder = "token_rep_layer.bert_layer.model."
    is_deberta = "encoder_config" in config
    shapes = _deberta(vocab) if is_deberta else _bert(vocab + 3)
    shapes = {encoder + name: shape for name, shape in shapes.items()}
    if size != ENCODER["hidden_size"]:
        shapes |= _linear("token_rep_layer.projection", ENCODER["hidden_size"], size)
    for layer in range(layers):
        for side in ("", "_reverse"):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ends = ((2 * size, size), (2 * size, size // 2), (2 * size,), (2 * size,))
            for name, shape in zip(names, ends, strict=True):
                shapes[f"rnn.lstm.{name}_l{layer}{side}"] = shape
    if config.get("span_mode") == "token_level":
        shapes |= _linear("scorer.proj_token", size, 2 * size)
        shapes |= _linear("scorer.proj_label", size, 2 * size)
        shapes |= _linear("scorer.out_mlp.0", 3 * size, 4 * size)
        shapes |= _linear("scorer.out_mlp.3", 4 * size, 3)
    else:
        span = "span_rep_layer.span_rep_layer."
        widths = {f"{span}project_start": size, f"{span}project_end": size}
        widths |= {f"{span}out_project": 2 * size, "prompt_rep_layer": size}
        for name, width in widths.items():
            shapes |= _linear(f"{name}.0", width, 4 * size) | _linear(f"{name}.3", 4 * size, size)
    return {name: _weight(name, shape) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    random = np.random.default_rng(zlib.crc32(name.encode()))
    values = random.normal(size=shape) * (0.1 if len(shape) == 1 else 1.3 / shape[-1] ** 0.5)
    if re.search(r"LayerNorm\.weight$", name):
        values += 1
    return torch.from_numpy(values.astype(np.float32))


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{part}": (ENCODER["hidden_size"],) for part in ("weight", "bias")}


def _layers(projections: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    hidden, inner = ENCODER["hidden_size"], ENCODER["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(ENCODER["num_hidden_layers"]):
        name = f"encoder.layer.{layer}."
        for projection in projections:
            shapes |= _linear(f"{name}attention.self.{projection}", hidden, hidden)
        shapes |= _linear(f"{name}attention.output.dense", hidden, hidden)
        shapes |= _norm(f"{name}attention.output.LayerNorm")
        shapes |= _linear(f"{name}intermediate.dense", hidden, inner)
        shapes |= _linear(f"{name}output.dense", inner, hidden) | _norm(f"{name}output.LayerNorm")
    return shapes


def _deberta(vocab: int) -> dict[str, tuple[int, ...]]:
    hidden = ENCODER["hidden_size"]
    return {
        "embeddings.word_embeddings.weight": (vocab, hidden),
        **_norm("embeddings.LayerNorm"),
        **_layers(("query_proj", "key_proj", "value_proj")),
        "encoder.rel_embeddings.weight": (2 * DEBERTA["position_buckets"], hidden),
        **_norm("encoder.LayerNorm"),
    }


def _bert(vocab: int) -> dict[str, tuple[int, ...]]:
    hidden = ENCODER["hidden_size"]
    return {
        "embeddings.word_embeddings.weight": (vocab, hidden),
        "embeddings.position_embeddings.weight": (BERT["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (BERT["type_vocab_size"], hidden),
        **_norm("embeddings.LayerNorm"),
        **_layers(("query", "key", "value")),
        **_linear("pooler.dense", hidden, hidden),
    }


def _write_tokenizer(folder: Path, config: dict[str, Any]) -> Tokenizer:
    """Write a Unigram or WordPiece tokenizer of letters and some words."""
    letters = sorted({*"".join([*TEXTS, *LABELS, *MANY])} - {*" \n"})
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    if "encoder_config" in config:
        parts = ["▁", "▁in", "▁city", "▁person", "▁of", "▁type", "▁Lon", "don", "ove", *letters]
        pieces = [(part, -1.0 - index / 10) for index, part in enumerate(parts)]
        tokenizer = Tokenizer(models.Unigram([*((s, 0.0) for s in specials), *pieces], unk_id=3))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        kind = "DebertaV2Tokenizer"
        extra = ["[FLERT]", config.get("ent_token", "<<ENT>>"), config.get("sep_token", "<<SEP>>")]
    else:
        parts = ["was", "city", "person", "of", "##don", *letters, *(f"##{c}" for c in letters)]
        vocab = {part: index for index, part in enumerate(dict.fromkeys([*specials, *parts]))}
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        kind, extra = "BertTokenizer", []
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    tokenizer.add_special_tokens([*specials, *extra])
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {f"{s[1:-1].lower()}_token": s for s in specials}
    settings = {"tokenizer_class": kind, "do_lower_case": False, **roles}
    _write_json(folder / "tokenizer_config.json", settings)
    return tokenizer


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _reference(variant: str, folder: Path) -> list[list[list[list[Any]]]]:
    """Return the predictions of `gliner` for each case and text."""
    from gliner import GLiNER  # type: ignore[import-not-found]

    # Without encoder_config, gliner reads the encoder's settings from model_name.
    write_gliner(folder, variant, changes={"model_name": str(folder)})
    model = GLiNER.from_pretrained(str(folder), strict=True)
    rows = []
    for case in CASES:
        options = {"flat_ner" if name == "flat" else name: value for name, value in case.items()}
        predictions = model.inference(TEXTS, batch_size=3, **options)
        rows.append(
            [
                [[e["start"], e["end"], e["label"], round(e["score"], 6)] for e in entities]
                for entities in predictions
            ]
        )
    return rows


def write_golden() -> None:
    """Write the golden file: the keys of `gliner_config.json`, and predictions for each text."""
    from gliner import GLiNERConfig
    from transformers import PretrainedConfig

    keys = sorted({*GLiNERConfig().to_dict()} - {*PretrainedConfig().to_dict()})
    lines = [f'"keys": {json.dumps(keys)}']
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            rows = _reference(variant, Path(folder))
        texts = [",\n".join(json.dumps(text) for text in case) for case in rows]
        cases = ",\n".join(f"[\n{case}\n]" for case in texts)
        lines.append(f"{json.dumps(variant)}: [\n{cases}\n]")
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden()
