"""Encoders match transformers on tiny models: states, heads, loss, and gradients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from tests.factories import ENCODERS
from torch import Tensor

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.directory import Loaded, save
from bertkit.checkpoint.weights import read_tensors, standard_names, write_tensors
from bertkit.config import at, decode, merged, nested, plain
from bertkit.engine.engine import Engine
from bertkit.families import BERT, DEBERTA, DISTILBERT, ELECTRA, GTE, NOMIC_BERT, ROBERTA, Family
from bertkit.families.nomic import OLDER_VALUES
from bertkit.models.config import FeedForwardSettings, TransformerConfig
from bertkit.models.model import Model, build
from bertkit.nn.attention import Attention, Trace
from bertkit.objectives.loss import totals
from bertkit.objectives.pretrain import pretrain

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

SIZES = [3, 9, 9, 12, 20, 31]
VOCAB, PAD = 150, 1

SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {},
    "ernie": {},
    "data2vec-text": {"layer_norm_eps": 1e-5, "type_vocab_size": 1},
    "roberta": {"layer_norm_eps": 1e-5, "type_vocab_size": 1},
    "xlm-roberta": {"layer_norm_eps": 1e-5, "type_vocab_size": 1},
    "camembert": {"layer_norm_eps": 1e-5, "type_vocab_size": 1},
    "albert": {
        "embedding_size": 16,
        "num_hidden_layers": 4,
        "num_hidden_groups": 2,
        "inner_group_num": 2,
        "classifier_dropout_prob": 0.0,
    },
    "distilbert": {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
    "electra": {"embedding_size": 16, "summary_last_dropout": 0.0},
    "mpnet": {},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "legacy": False,
    },
    "nomic_bert": {},
    "gte": {"rope_parameters": {"rope_type": "linear", "rope_theta": 160.0, "factor": 1.3}},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 8, "classifier_pooling": "mean"},
}
"""Settings of transformers by family, in addition to the common settings."""

CASES = [
    (family, heads)
    for family in ENCODERS.values()
    for heads in family.architectures
    if heads
    not in (frozenset(), {"crf"}, {"mlm", "sop"} if family.name in ("bert", "ernie") else None)
]
NAMES = [f"{family.name}-{'+'.join(sorted(heads))}" for family, heads in CASES]
PRETRAINED = [(f, h) for f, h in CASES if "mlm" in h]
LABELLED = ({"classify"}, {"tag"})


def make_hf_config(family: Family, more: Mapping[str, Any] | None = None) -> Any:
    config = TransformerConfig(
        vocab=VOCAB, hidden=32, layers=3, heads=4, intermediate=64, max_positions=64, pad_id=PAD
    )
    shape = {path: at(config, path) for path in family.settings if at(config, path) is not None}
    settings = {family.settings[name]: value for name, value in shape.items()}
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings |= SETTINGS[family.name]
    if family.positions_after_pad:
        settings["max_position_embeddings"] += PAD + 1
    settings |= more or {}
    return transformers.CONFIG_MAPPING[family.name](**settings, num_labels=3)


def make_hf_model(
    family: Family, heads: frozenset[str], more: Mapping[str, Any] | None = None
) -> Any:
    torch.manual_seed(1)
    config = make_hf_config(family, more)
    if heads == {"answer"} or "sop" in heads:
        config.num_labels = 2
    model = getattr(transformers, family.architectures[heads])(config)
    with torch.no_grad():  # larger than at initialization, so that mistakes show
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.tie_weights()
    return model.eval()


@pytest.fixture
def tokenizer(tmp_path: Path) -> bertkit.Tokenizer:
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(VOCAB - 5))]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return bertkit.Tokenizer.load(tmp_path / "vocab.txt")


def save_and_load(hf_model: Any, tokenizer: bertkit.Tokenizer, folder: Path) -> Loaded:
    hf_model.save_pretrained(folder)
    tokenizer.save(folder)
    return bertkit.load(folder)


def inputs(types: int) -> tuple[Batch, dict[str, Tensor]]:
    """Return the same sequences packed for bertkit and padded for transformers."""
    layout = Packed.of(SIZES)
    ids = torch.randint(5, VOCAB, (layout.total,))
    segments = (layout.positions > 4).long() if types > 1 else torch.zeros_like(ids)
    masked = (layout.positions % 4 == 1).nonzero().squeeze(1)
    pair = torch.tensor([0, 1, 1, 0, 1, 0])
    batch = Batch(ids, segments, layout, masked, {"mlm": ids[masked], "nsp": pair, "sop": pair})
    shape, index = (len(SIZES), max(SIZES)), (layout.sequence_ids, layout.positions)
    padded = {
        "input_ids": torch.full(shape, PAD).index_put(index, ids),
        "attention_mask": torch.zeros(shape, dtype=torch.long).index_put(
            index, torch.ones_like(ids)
        ),
    }
    if types:
        padded["token_type_ids"] = torch.zeros(shape, dtype=torch.long).index_put(index, segments)
    return batch, padded


def difference(bertkit_model: Model, hf_model: Any, family: Family, *, body: bool = True) -> float:
    """Return the largest difference of head outputs and, if `body` is true, of states."""
    heads = set(bertkit_model.heads)
    batch, padded = inputs(bertkit_model.config.token_types)
    index = batch.layout.sequence_ids, batch.layout.positions
    bare = getattr(hf_model, family.prefix.rstrip("."), hf_model)
    with torch.no_grad():
        actual = bertkit_model(batch)
        gaps = []
        if body:
            states = bare(**padded).last_hidden_state[index]
            gaps = [(bertkit_model.encoder(batch) - states).abs().max()]
        if heads == {"choose"}:  # each sequence is the only choice of a question
            padded = {name: value[:, None] for name, value in padded.items()}
        answer = hf_model(**padded)
    for head in heads:
        if head == "pooler":
            expected = answer.pooler_output
        elif head == "answer":
            expected = torch.stack([answer.start_logits, answer.end_logits], -1)[index]
        elif head == "mlm":
            expected = (answer.prediction_logits if len(heads) > 1 else answer.logits)[index][
                batch.token_indices
            ]
        elif head in ("nsp", "sop"):
            name = {"nsp": "seq_relationship_logits", "sop": "sop_logits"}[head]
            expected = getattr(answer, name) if len(heads) > 1 else answer.logits
        elif head == "tag":
            expected = answer.logits[index][batch.token_indices]
        else:
            expected = answer.logits[index] if head == "rtd" else answer.logits
        gaps.append((actual[head] - expected).abs().max())
    return float(torch.stack(gaps).max())


RATES = {
    "hidden_dropout_prob": 0.05,
    "classifier_dropout": 0.1,
    "classifier_dropout_prob": 0.15,
    "cls_dropout": 0.12,
    "summary_last_dropout": 0.2,
    "dropout": 0.25,
    "qa_dropout": 0.3,
    "seq_classif_dropout": 0.35,
}
"""Distinct dropout settings of transformers. ALBERT applies dropout in other positions."""


class Drops:
    """Deterministic dropout for both libraries: factors depend on the rate and the call count."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def __call__(self, x: Tensor, rate: float) -> Tensor:
        if rate == 0.0:
            return x
        self.rates.append(rate)
        positions = torch.arange(x.shape[-1]) + len(self.rates)
        return x * (1.0 - rate + 2.0 * rate * (positions % 2))


def models_with_dropout(
    family: Family,
    heads: frozenset[str],
    tokenizer: bertkit.Tokenizer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: Mapping[str, Any] = {},
) -> tuple[Model, Any]:
    """Return a model with changed settings, and the model of transformers, with dropout rates."""
    rates = RATES | ({"hidden_dropout_prob": 0.0} if family.name == "albert" else {})
    hf_model, read = make_hf_model(family, heads, rates), family.read_config
    with monkeypatch.context() as patch:
        patch.setattr(
            type(family),
            "read_config",
            lambda _, config: decode(
                TransformerConfig, merged(plain(read(config)), nested(changed))
            ),
        )
        return save_and_load(hf_model, tokenizer, folder).model, hf_model


def dropout_difference(
    model: Model, hf_model: Any, family: Family, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, list[float]]:
    """Return the difference to transformers in training mode and the dropout rates it applied."""
    drops, hf_drops = Drops(), Drops()
    with monkeypatch.context() as patch:
        patch.setattr("bertkit.nn.dropout.dropout", drops)
        patch.setattr(torch.nn.Dropout, "forward", lambda self, x: hf_drops(x, self.p))
        return difference(model.train(), hf_model.train(), family, body=False), hf_drops.rates


@pytest.mark.parametrize(("family", "heads"), CASES, ids=NAMES)
def test_outputs_match_transformers_with_and_without_dropout(
    family: Family,
    heads: frozenset[str],
    tokenizer: bertkit.Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "model"
    model, hf_model = models_with_dropout(family, heads, tokenizer, folder, monkeypatch)
    assert set(model.heads) == heads
    assert difference(model, hf_model, family) <= 1e-5
    gap, rates = dropout_difference(model, hf_model, family, monkeypatch)
    assert gap <= 1e-5
    assert rates or family.name in ("albert", "modernbert")


CHANGED: dict[str, tuple[frozenset[str], dict[str, Any]]] = {
    "roberta": (frozenset({"classify"}), {"head.dense_dropout": 0.0}),
    "xlm-roberta": (frozenset({"choose"}), {"head.choose_dropout": "head.dropout"}),
    "electra": (frozenset({"choose"}), {"head.choose_dropout": "head.dropout"}),
    "distilbert": (frozenset({"tag"}), {"head.tag_dropout": "head.dropout"}),
    "albert": (frozenset({"mlm", "sop"}), {"head.sop_dropout": 0.0}),
    "modernbert": (frozenset({"answer"}), {"head.answer_dropout": 0.0}),
    "camembert": (frozenset({"mlm"}), {"attention.output_dropout": 0.0}),
    "bert": (frozenset({"classify"}), {"head.dense_dropout": "head.dropout"}),
    "deberta-v2": (frozenset({"tag"}), {"head.tag_dropout": "head.dropout"}),
    "nomic_bert": (frozenset({"mlm"}), {"attention.output_dropout": 0.0}),
    "gte": (frozenset({"mlm"}), {"feedforward.dropout": 0.0}),
}


@pytest.mark.parametrize("name", ["bert", "electra", "modernbert"])
def test_relu2_matches_transformers(
    name: str, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    family = ENCODERS[name]
    heads = frozenset({"rtd" if family is ELECTRA else "mlm"})
    hf_model = make_hf_model(family, heads, {family.activation: "relu2"})
    loaded = save_and_load(hf_model, tokenizer, tmp_path / "model")
    assert difference(loaded.model, hf_model, family) <= 1e-5
    assert family.write_config(loaded.model.config)[family.activation] == "relu2"
    plain = make_hf_model(family, heads, {family.activation: "relu"})
    assert difference(loaded.model, plain, family) > 1e-4  # the control


@pytest.mark.parametrize("name", sorted({*ENCODERS} - {"gte"}))  # GTE has one activation
def test_mlm_head_activation_matches(
    name: str, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    family, mlm = ENCODERS[name], frozenset({"mlm"})
    hf_model = make_hf_model(family, mlm, {family.activation: "silu"})
    loaded = save_and_load(hf_model, tokenizer, tmp_path / "model")
    assert difference(loaded.model, hf_model, family) <= 1e-5
    loaded.save(tmp_path / "saved")
    again = bertkit.load(tmp_path / "saved").model
    assert difference(again, hf_model, family) <= 1e-5
    head: Any = again.heads["mlm"]
    head.activation = torch.tanh
    assert difference(again, hf_model, family) > 1e-3  # the control


@pytest.mark.parametrize("name", CHANGED)
def test_control_different_dropout_differs(
    name: str, tokenizer: bertkit.Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (heads, changed), family = CHANGED[name], ENCODERS[name]
    folder = tmp_path / "model"
    models = models_with_dropout(family, heads, tokenizer, folder, monkeypatch, changed)
    assert dropout_difference(*models, family, monkeypatch)[0] > 1e-3


@pytest.mark.parametrize("family", ENCODERS.values(), ids=ENCODERS)
def test_control_wrong_setting_differs(
    family: Family, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    hf_model = make_hf_model(family, frozenset({"mlm"}))
    model = save_and_load(hf_model, tokenizer, tmp_path / "model").model
    layers, sharing = model.config.layers - 1, model.config.layer_sharing
    for wrong in (
        {"feedforward": FeedForwardSettings(activation="relu")},
        {"heads": 8},
        {"layers": layers, "layer_sharing": sharing and sharing[:layers]},
    ):
        changed = build(structs.replace(model.config, **wrong), ("mlm",)).eval()
        sizes = {name: weight.shape for name, weight in changed.state_dict().items()}
        state = {n: w for n, w in model.state_dict().items() if sizes.get(n) == w.shape}
        changed.load_state_dict(state, strict=False)
        assert difference(changed, hf_model, family) > 1e-4, wrong


@pytest.mark.parametrize(
    ("family", "heads"), PRETRAINED, ids=[f"{f.name}-{'+'.join(sorted(h))}" for f, h in PRETRAINED]
)
def test_loss_and_gradients_match_in_training_mode(
    family: Family, heads: frozenset[str], tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    hf_model = make_hf_model(family, heads)
    bertkit_model = save_and_load(hf_model, tokenizer, tmp_path / "model").model.train()
    batch, padded = inputs(bertkit_model.config.token_types)
    index = (
        batch.layout.sequence_ids[batch.token_indices],
        batch.layout.positions[batch.token_indices],
    )
    labels = torch.full(padded["input_ids"].shape, -100).index_put(index, batch.targets["mlm"])
    pair = {
        name: batch.targets[head]
        for head, name in (("nsp", "next_sentence_label"), ("sop", "sentence_order_label"))
        if head in heads
    }
    hf_loss = hf_model.train()(**padded, labels=labels, **pair).loss
    bertkit_loss = pretrain(bertkit_model, batch, totals([batch])).total
    assert abs(bertkit_loss.item() - hf_loss.item()) <= 1e-5
    hf_loss.backward()
    bertkit_loss.backward()
    for parameter in hf_model.parameters():  # save gradients under the names of weights
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    hf_model.save_pretrained(tmp_path / "gradients")
    tensors = standard_names(family, read_tensors(tmp_path / "gradients"))
    gradients = family.read(dict(bertkit_model.named_parameters()), tensors, bertkit_model.config)
    for name, weight in bertkit_model.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], atol=1e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("bert", {"hidden_act": "gelu_pytorch_tanh"}),
        ("albert", {"hidden_act": "gelu_pytorch_tanh"}),
        ("distilbert", {"sinusoidal_pos_embds": True, "activation": "gelu_new"}),
    ],
)
def test_alternative_activation_names_match(
    name: str, more: dict[str, Any], tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    family, heads = ENCODERS[name], frozenset({"mlm"})
    hf_model = make_hf_model(family, heads, more)
    bertkit_model = save_and_load(hf_model, tokenizer, tmp_path / "model").model
    assert bertkit_model.config.feedforward.activation == "gelu_tanh"
    assert difference(bertkit_model, hf_model, family) <= 1e-5
    wrong = build(
        structs.replace(bertkit_model.config, feedforward=FeedForwardSettings()), ("mlm",)
    ).eval()
    wrong.load_state_dict(bertkit_model.state_dict(), strict=False)
    assert difference(wrong, hf_model, family) > 1e-4
    save(tmp_path / "again", bertkit_model, tokenizer, family)
    again = getattr(transformers, family.architectures[heads]).from_pretrained(tmp_path / "again")
    assert difference(bertkit_model, again.eval(), family) <= 1e-5


@pytest.mark.parametrize(
    "more",
    [
        {"legacy": True},
        {"conv_kernel_size": 3, "conv_act": "gelu", "attention_head_size": 8},
        {"max_relative_positions": 24, "type_vocab_size": 0, "pos_att_type": ["c2p", "p2c"]},
    ],
    ids=["names of transformers' own head", "version 2 xlarge", "separate distance"],
)
def test_deberta_variants_match_transformers(
    more: dict[str, Any], tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    heads = frozenset({"mlm"})
    hf_model = make_hf_model(DEBERTA, heads, more)
    bertkit_model = save_and_load(hf_model, tokenizer, tmp_path / "model").model
    assert difference(bertkit_model, hf_model, DEBERTA) <= 1e-5
    save(tmp_path / "again", bertkit_model, tokenizer, DEBERTA)
    again = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "again")
    assert difference(bertkit_model, again.eval(), DEBERTA) <= 1e-5
    if bertkit_model.encoder.convolution is not None:
        bertkit_model.encoder.convolution = None  # the control
        assert difference(bertkit_model, hf_model, DEBERTA) > 1e-3


@pytest.mark.parametrize("term", ["queries of distances", "keys of distances", "buckets"])
def test_control_deberta_without_term_differs(
    term: str, tokenizer: bertkit.Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_model = make_hf_model(DEBERTA, frozenset({"mlm"}))
    bertkit_model = save_and_load(hf_model, tokenizer, tmp_path / "model").model
    assert bertkit_model.encoder.distances is not None
    if term == "buckets":
        bertkit_model.encoder.distances.farthest = 2 * bertkit_model.encoder.distances.farthest
    else:
        selected = torch.tensor([0.0, 1.0] if term.startswith("queries") else [1.0, 0.0])
        whole = Attention.project_distances
        monkeypatch.setattr(
            Attention, "project_distances", lambda *args: whole(*args) * selected[:, None, None]
        )
    assert difference(bertkit_model, hf_model, DEBERTA) > 1e-3


def test_deberta_in_engine_matches_transformers(
    tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    """Distance projections that an engine computes once match those of transformers."""
    hf_model = make_hf_model(DEBERTA, frozenset({"mlm"}))
    bertkit_model = save_and_load(hf_model, tokenizer, tmp_path / "model").model
    with torch.inference_mode():
        assert difference(Engine(bertkit_model).model, hf_model, DEBERTA) <= 1e-5


def test_published_nomic_directory_matches(tokenizer: bertkit.Tokenizer, tmp_path: Path) -> None:
    """The published config.json has the keys of GPT-2 and refers to remote code."""
    hf_model = make_hf_model(NOMIC_BERT, frozenset())
    folder = tmp_path / "model"
    save_and_load(hf_model, tokenizer, folder)
    names = {
        "vocab_size": "vocab_size", "hidden_size": "n_embd", "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head", "intermediate_size": "n_inner",
        "layer_norm_eps": "layer_norm_epsilon", "type_vocab_size": "type_vocab_size",
    }  # fmt: skip
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    code = "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"
    published = {
        **{new: saved[old] for old, new in names.items()},
        **OLDER_VALUES,
        "model_type": "nomic_bert",
        "n_positions": 8192,
        "max_trained_positions": 2048,
        "pad_token_id": PAD,
        "rotary_emb_base": 1000,
        "auto_map": {"AutoModel": code},
    }
    (folder / "config.json").write_text(json.dumps(published), encoding="utf-8")
    bertkit_model = bertkit.load(folder).model
    assert difference(bertkit_model, hf_model, NOMIC_BERT) <= 1e-5
    changed = {**published, "rotary_emb_base": 10_000}  # the control
    (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
    assert difference(bertkit.load(folder).model, hf_model, NOMIC_BERT) > 1e-3


NEW = "Alibaba-NLP/new-impl--modeling.New"


def published_gte(
    hf_model: Any, tokenizer: bertkit.Tokenizer, folder: Path, prefix: str, **changes: Any
) -> Loaded:
    """Load a directory like the published GTE models: packed weights and remote code."""
    hf_model.save_pretrained(folder)  # transformers packs the weights
    tokenizer.save(folder)
    weights = {
        prefix + name.removeprefix("gte.") if name.startswith(("gte.", "emb", "enc")) else name: t
        for name, t in read_tensors(folder).items()
    }
    assert any(name.startswith(f"{prefix}encoder.layer.0.mlp.up_gate_proj") for name in weights)
    write_tensors(folder / "model.safetensors", weights)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del settings["rope_parameters"]
    settings |= {
        "model_type": "new",
        "architectures": ["NewModel", "NewForTokenClassification"],
        "auto_map": {"AutoModel": f"{NEW}Model", "AutoModelForMaskedLM": f"{NEW}ForMaskedLM"},
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "unpad_inputs": "true",
        "use_memory_efficient_attention": "true",
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return bertkit.load(folder)


@pytest.mark.parametrize(
    ("heads", "prefix", "types"),
    [
        *(((), prefix, types) for prefix, types in (("", 0), ("", 2), ("new.", 1))),
        *(((head,), "new.", types) for types, head in enumerate(("mlm", "classify", "tag"))),
    ],
)
def test_published_gte_directory_matches(
    heads: tuple[str, ...], prefix: str, types: int, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    """The angles follow the fixed NTK formula of the published code."""
    base, factor, width = 500.0, 4.0, 8
    plain_angles = {"rope_parameters": {"rope_type": "default", "rope_theta": base}}
    hf_model = make_hf_model(GTE, frozenset(heads), {"type_vocab_size": types, **plain_angles})
    scaling = {"rope_theta": base, "rope_scaling": {"type": "ntk", "factor": factor}}
    folder = tmp_path / "model"
    bertkit_model = published_gte(hf_model, tokenizer, folder, prefix, **scaling).model
    assert set(bertkit_model.heads) == {*heads}
    # The control: the angles are not scaled yet.
    assert difference(bertkit_model, hf_model, GTE) > 1e-3
    rotary = getattr(hf_model, "gte", hf_model).rotary_emb
    steps = torch.arange(0, width, 2) / width
    rotary.inv_freq = (base * factor) ** -steps / factor ** (2 / width)
    assert difference(bertkit_model, hf_model, GTE) <= 1e-5
    save(tmp_path / "again", bertkit_model, tokenizer, GTE, labels=("a", "b", "c") if heads else ())
    again = getattr(transformers, GTE.architectures[frozenset(heads)])
    again = again.from_pretrained(tmp_path / "again").eval()
    assert difference(bertkit_model, again, GTE) <= 1e-5


def test_sinusoidal_positions_match_transformers(
    tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    hf_model = make_hf_model(DISTILBERT, frozenset({"mlm"}), {"sinusoidal_pos_embds": True})
    bertkit_model = save_and_load(hf_model, tokenizer, tmp_path / "model").model
    actual = bertkit_model.encoder.embedding.positions.weight
    expected = hf_model.distilbert.embeddings.position_embeddings.weight
    assert torch.equal(actual, expected)
    assert actual.requires_grad == expected.requires_grad


@pytest.mark.parametrize(("family", "heads"), CASES, ids=NAMES)
def test_saved_model_loads_in_transformers(
    family: Family, heads: frozenset[str], tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    config = family.read_config(make_hf_config(family).to_dict())
    labels = ("a", "b", "c") if heads in LABELLED else ()
    bertkit_model = build(config, sorted(heads), labels=labels).eval()
    save(tmp_path / "saved", bertkit_model, tokenizer, family, labels=labels)
    hf_model = getattr(transformers, family.architectures[heads])
    hf_model = hf_model.from_pretrained(tmp_path / "saved").eval()
    assert difference(bertkit_model, hf_model, family) <= 1e-5
    if labels:
        assert hf_model.config.id2label == {0: "a", 1: "b", 2: "c"}
    again = bertkit.load(tmp_path / "saved")
    assert again.model.config == bertkit_model.config
    for name, tensor in bertkit_model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])


@pytest.mark.parametrize(
    "family", [BERT, ROBERTA, DISTILBERT, ELECTRA, DEBERTA], ids=lambda f: f.name
)
def test_trace_matches_states_and_attention(
    family: Family, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    hf_model = make_hf_model(family, frozenset({"mlm"}))
    hf_model.set_attn_implementation("eager")
    bertkit_model = save_and_load(hf_model, tokenizer, tmp_path / "model").model
    batch, padded = inputs(bertkit_model.config.token_types)
    trace = Trace()
    with torch.no_grad():
        bertkit_model.encoder(batch, trace)
        answer = hf_model(**padded, output_hidden_states=True, output_attentions=True)
    index = batch.layout.sequence_ids, batch.layout.positions
    assert len(trace.states) == 4
    for actual, expected in zip(trace.states, answer.hidden_states, strict=True):
        torch.testing.assert_close(actual, expected[index], atol=1e-5, rtol=1e-4)
    for actual, expected in zip(trace.attention, answer.attentions, strict=True):
        for sequence, size in enumerate(SIZES):
            exact = expected[sequence, :, :size, :size]
            torch.testing.assert_close(actual[sequence], exact, atol=1e-5, rtol=1e-4)
    assert [h.shape for h in trace.heads] == [(batch.layout.total, 4, 8)] * 3


def test_minilm_embeddings_match_sentence_transformers(minilm: Path, english: list[str]) -> None:
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    texts = [text[:n] for text in english[:12] for n in (1, 40, 300)]
    expected = peer.SentenceTransformer(str(minilm), device="cpu").encode(texts)
    embeddings = bertkit.pipeline("embed", minilm)(texts)
    assert embeddings.dtype == expected.dtype == "float32"
    assert abs(embeddings - expected).max() <= 1e-5
    assert abs(bertkit.pipeline("embed", minilm, pooling="cls")(texts) - expected).max() > 1e-2
