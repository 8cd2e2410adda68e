"""Each key of `config.json` has the same effect in bertkit and in transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.parity.published import CASES, NAMES, Published, transformers

import bertkit
from bertkit.families import FAMILIES, Family

IDENTITY = {"architectures", "model_type", "auto_map", "bertkit"}
"""Keys that select the model itself."""

ACTIVATIONS = [
    "relu", "gelu_new", "silu", "gelu_python", "quick_gelu", "gelu_fast", "gelu_pytorch_tanh",
    "relu2", "swish", "mish", "tanh",
]  # fmt: skip
ANGLES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 5.0},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    {"rope_theta": 7.0},
]
VALUES: dict[str, list[Any]] = {
    **dict.fromkeys(
        ("activation", "activation_function", "afn", "classifier_activation", "conv_act",
         "dense_act_fn", "hidden_act", "hidden_activation", "pooler_hidden_act"),
        ACTIVATIONS,
    ),
    "classifier_pooling": ["cls", "mean"],
    "dtype": ["float16"],
    "feed_forward_proj": ["gelu", "gated-gelu", "silu", "tanh"],
    "global_attn_every_n_layers": [1, 2],
    "layer_types": [
        ["full_attention"] * 4,
        ["full_attention", "sliding_attention"] * 2,
        ["sliding_attention", "full_attention"] * 2,
    ],
    "local_attention": [1, 2, 4, 5],
    "norm_rel_ebd": ["none"],
    "per_layer_config": [{"1": {"hidden_act": "relu"}}],
    "pos_att_type": ["c2p", "c2p|p2c", ["c2p", "p2c"], ["p2c"]],
    "position_embedding_type": ["relative_key"],
    "problem_type": ["regression"],
    "pruned_heads": [{"0": [1]}],
    "rope_parameters": [
        *ANGLES,
        *({"full_attention": angles, "sliding_attention": angles} for angles in ANGLES[:2]),
    ],
    "rope_scaling": ANGLES,
    "rope_theta": [5.0],
    "summary_type": ["last", "mean"],
    "torch_dtype": ["float16"],
}  # fmt: skip
"""Values of keys for which half, twice, or the opposite value is not sufficient."""

FAST = (
    "bert-classify", "ernie-tag", "roberta-mlm", "albert-classify", "distilbert-mlm",
    "electra-choose", "modernbert-classify", "mpnet-mlm", "deberta-v2-mlm", "nomic_bert-mlm",
    "gte-classify", "gpt2-lm", "openai-gpt-classify", "llama-lm", "marian-lm", "bart-lm", "t5-lm",
)  # fmt: skip


def names(family: Family) -> set[str]:
    """Return the keys of a family's configuration class in transformers."""
    config = transformers.CONFIG_MAPPING[family.name]
    fields = {field.name for field in dataclasses.fields(config)}
    return {*fields, *config().to_dict(), *config.attribute_map}


@pytest.mark.parametrize("name", sorted({family.name for family, _ in CASES}))
def test_table_has_every_key_of_the_reference(name: str) -> None:
    family = FAMILIES[name]
    table = family.keys
    groups = (set(table.applied), set(table.irrelevant), set(table.neutral))
    assert names(family) <= set().union(*groups)
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert all(reason.strip() for reason in table.irrelevant.values())


def test_every_family_has_a_reference() -> None:
    own = {"lstm", "lstm-lm"}  # formats of bertkit itself
    assert {family.name for family, _ in CASES} == set(FAMILIES) - own


def other_values(key: str, value: Any) -> list[Any]:
    """Return values to replace the value of a key with."""
    values = list(VALUES.get(key, ()))
    if isinstance(value, bool):
        values.append(not value)
    elif isinstance(value, int):
        values += [value * 2 or 1, value // 2]
    elif isinstance(value, float):
        values.append(value + 0.5)
    elif isinstance(value, str):
        values.append("other")
    elif value is None and not values:
        values += [True, 2]
    return [other for other in values if other != value]


def changes(published: Published) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield a key, its value or None if it is removed, and the changed file."""
    settings, table = published.settings, published.family.keys
    known = {*table.applied, *table.irrelevant, *table.neutral} - IDENTITY
    for key in sorted(known):
        for value in other_values(key, settings.get(key)):
            yield key, value, {**settings, key: value}
        if key in settings:
            yield key, None, {name: value for name, value in settings.items() if name != key}


def failures(published: Published) -> list[str]:
    found = []
    irrelevant = published.family.keys.irrelevant
    for key, value, settings in changes(published):
        verdict = published.verdict(settings)
        if verdict == "wrong" or (verdict == "rejected" and key in irrelevant):
            found.append(f"{key} = {value!r}: {verdict}")
    return found


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> bertkit.Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(145))]
    path.write_text("\n".join(words), encoding="utf-8")
    return bertkit.Tokenizer.load(path)


@pytest.fixture(scope="module")
def bpe(english: list[str]) -> bertkit.Tokenizer:
    from bertkit.text.vocabulary_training import train

    return train(english[:20], kind="bpe", size=300)


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_changed_key_matches_transformers(
    name: str, tokenizer: bertkit.Tokenizer, bpe: bertkit.Tokenizer, tmp_path: Path
) -> None:
    family, heads = CASES[NAMES.index(name)]
    published = Published(family, heads, bpe if "lm" in family.heads else tokenizer, tmp_path)
    assert published.verdict(published.settings) == "equal"
    assert not failures(published)


LIMITS: list[tuple[str, str, float]] = [
    ("modernbert-classify", "local_attention", 1),
    ("modernbert-mlm", "local_attention", 0),
    ("bert-classify", "hidden_dropout_prob", 1.0),
    ("roberta-mlm", "attention_probs_dropout_prob", 1.0),
    ("electra-choose", "summary_last_dropout", 1.0),
    ("bart-lm", "activation_dropout", 1.0),
    ("t5-lm", "dropout_rate", 1.0),
]
"""Smallest windows and largest dropout probabilities that transformers accepts."""


@pytest.mark.parametrize(("name", "key", "value"), LIMITS)
def test_key_at_its_limit_is_supported(
    name: str,
    key: str,
    value: float,
    tokenizer: bertkit.Tokenizer,
    bpe: bertkit.Tokenizer,
    tmp_path: Path,
) -> None:
    family, heads = CASES[NAMES.index(name)]
    published = Published(family, heads, bpe if "lm" in family.heads else tokenizer, tmp_path)
    assert published.verdict({**published.settings, key: value}) == "equal"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("modernbert-mlm", "local_attention", -1), ("bert-classify", "hidden_dropout_prob", 1.01)],
)
def test_key_beyond_its_limit_is_rejected(
    name: str, key: str, value: float, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    published = Published(*CASES[NAMES.index(name)], tokenizer, tmp_path)
    assert published.verdict({**published.settings, key: value}) == "rejected"


def test_control_ignored_key_is_wrong(
    tokenizer: bertkit.Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = Published(*CASES[NAMES.index("bert-classify")], tokenizer, tmp_path)
    monkeypatch.setitem(published.family.settings, "norm.eps", "none")  # type: ignore[index]
    monkeypatch.setattr(
        "tests.parity.test_config_keys.changes",
        lambda model: [("layer_norm_eps", 0.5, {**model.settings, "layer_norm_eps": 0.5})],
    )
    assert failures(published) == ["layer_norm_eps = 0.5: wrong"]
