"""Tiny models whose weights are computed from their names, so that they are equal everywhere.

`python -m tests.extensions.transformers_pipelines.models FOLDER` writes them for `make_golden.py`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tests.factories import edit_config, tiny_config, tiny_tokenizer
from tokenizers import decoders, models, pre_tokenizers, processors

from bertkit.checkpoint.directory import save
from bertkit.families import FAMILIES
from bertkit.models.model import Model, build
from bertkit.text.tokenizer import Tokenizer

WORDS = """
    the a cat dog sat on mat of ann lives in berlin paris works for acme and bob old river bank
    ##s ##ing ##ed un ##known this example is about sports politics science text who where ? . , !
    b c d e f g ##a ##b ##c ##d ##e ##f
"""

MERGES = """
    t h, th e, Ġ the, Ġ a, i n, Ġ in, e r, a n, o n, Ġ on, a t, Ġ c, Ġc at, s at, Ġ sat, Ġ m, Ġm at,
    Ġ b, Ġb er, l in, Ġber lin, Ġ l, i v, iv e, Ġl ive, Ġlive s
"""

LENGTHS = {"t5": 300}
"""Maximum length of each model, except 64."""

NER = ("I-LOC", "O", "I-PER", "B-LOC", "B-PER")


def byte_tokenizer(before: str = "<s>") -> Tokenizer:
    """Return a tokenizer of byte-level BPE, with a special token before a text, if any."""
    merges = [tuple(pair.split()) for pair in MERGES.split(",")]
    letters = sorted(c for c in pre_tokenizers.ByteLevel.alphabet() if c.isascii() or c == "Ġ")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters, *map("".join, merges)]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    core = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(
        [
            tokenizers.AddedToken(token, special=True, lstrip=token == "<mask>")
            for token in tokens[:5]
        ]
    )
    core.post_processor = processors.TemplateProcessing(
        single=f"{before} $A </s>".strip(),
        pair=f"{before} $A </s> </s> $B </s>".strip(),
        special_tokens=[("<s>", vocab["<s>"]), ("</s>", vocab["</s>"])],
    )
    roles = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
    if before:
        roles |= {"bos": "<s>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    with tempfile.TemporaryDirectory() as folder:
        core.save(f"{folder}/tokenizer.json")
        config = {f"{role}_token": token for role, token in roles.items()}
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return Tokenizer.load(folder)


def compute_weights(model: Model, change: float) -> None:
    """Set the weights of a model to values that depend on their names.

    Args:
        model: The model.
        change: Relative difference from the weights of the golden files.
    """
    with torch.no_grad():
        for name, weight in model.named_parameters():
            seed = zlib.crc32(name.encode())
            values = np.random.Generator(np.random.PCG64(seed)).standard_normal(weight.numel())
            # Predictions must depend on the tokens more than on positions, types, and biases.
            is_small = any(part in name for part in ("positions", "types", "bias", "norm"))
            values *= 0.05 if is_small else 1.0 if "qkv" in name or "cross" in name else 0.3
            around = 1.0 if name.endswith("norm.weight") else 0.0
            weight.copy_(torch.from_numpy(around + values * (1 + change)).view_as(weight))


def write_encoder(
    folder: Path,
    tokenizer: Tokenizer,
    *heads: str,
    family: str = "bert",
    labels: Sequence[str] = (),
    change: float = 0.0,
    **keys: Any,
) -> None:
    """Write an encoder with heads. `keys` are further keys of config.json."""
    shape = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 48, "length": 64}
    shape["token_types"] = 1 if family == "roberta" else 2
    model = build(tiny_config(tokenizer, family=FAMILIES[family], **shape), heads, labels=labels)
    compute_weights(model, change)
    save(folder, model, tokenizer, FAMILIES[family], labels=labels, settings=keys)


def write_translator(folder: Path, family: str, change: float = 0.0, **keys: Any) -> None:
    """Write an encoder-decoder model. `keys` are further keys of config.json."""
    kind = FAMILIES[family]
    assert kind.decoder is not None
    tokenizer = byte_tokenizer("" if family == "t5" else "<s>")
    shape = {"vocab": tokenizer.vocab_size, "hidden": 32, "layers": 2, "heads": 4}
    shape |= {"intermediate": 48, "max_positions": LENGTHS.get(family, 64)}
    model = build(kind.config(shape), ("lm",), decoder=kind.decoder.config(shape))
    compute_weights(model, change)
    save(folder, model, tokenizer, kind)
    edit_config(folder, **keys)


def write_models(root: Path, change: float = 0.0) -> None:
    """Write all models of the golden files, with a relative change of each weight."""
    encoder = partial(write_encoder, change=change)
    translator = partial(write_translator, change=change)
    words, letters = tiny_tokenizer(WORDS.split()), byte_tokenizer()
    encoder(root / "bert", words, "mlm")
    encoder(root / "roberta", letters, "mlm", family="roberta")
    encoder(root / "classifier", words, "classify", labels=("bad", "good", "mixed"))
    problem = {"problem_type": "multi_label_classification"}
    encoder(root / "multi-label", words, "classify", labels=("x", "y", "z"), **problem)
    encoder(root / "ranker", words, "classify", labels=("score",))
    nli = ("contradiction", "neutral", "entailment")
    encoder(root / "nli", words, "classify", labels=nli)
    encoder(root / "tagger", words, "tag", labels=NER)
    encoder(root / "roberta-tagger", letters, "tag", labels=NER, family="roberta")
    encoder(root / "reader", words, "answer")
    encoder(root / "roberta-reader", letters, "answer", family="roberta")
    summary = {"prefix": "summarize: ", "max_length": 12, "no_repeat_ngram_size": 2}
    german = {"prefix": "translate English to German: ", "early_stopping": True}
    tasks = {"summarization": summary, "translation_en_to_de": german}
    translator(root / "t5", "t5", task_specific_params=tasks)
    translator(root / "bart", "bart")
    for path in root.glob("*/tokenizer_config.json"):
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["clean_up_tokenization_spaces"] = path.parent.name in ("roberta", "t5")
        settings["model_max_length"] = LENGTHS.get(path.parent.name, 64)
        path.write_text(json.dumps(settings), encoding="utf-8")


if __name__ == "__main__":
    write_models(Path(sys.argv[1]))
