"""Families map each weight and each setting to exactly one name, in both directions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from bertkit.config import at, paths
from bertkit.errors import ConfigError
from bertkit.extensions.generation.families.llama import LLAMA
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.extensions.generation.families.t5 import RATES, T5
from bertkit.families import (
    ALBERT,
    BERT,
    DEBERTA,
    DISTILBERT,
    FAMILIES,
    GTE,
    MODERNBERT,
    NOMIC_BERT,
    ROBERTA,
    Family,
    family_of,
)
from bertkit.families.nomic import OLDER_VALUES
from bertkit.models.config import (
    ConvolutionSettings,
    DisentangledPositions,
    RelativePositions,
    RotaryPositions,
    TransformerConfig,
    WindowSettings,
)
from bertkit.models.model import build


def config_of(family: Family, more: Mapping[str, Any] = {}) -> Any:
    small = {
        "vocab": 30,
        "hidden": 16,
        "layers": 4,
        "heads": 2,
        "intermediate": 64 if family is OPENAI_GPT else 24,
        "max_positions": 20,
    }
    rate = {"head.dropout": 0.3} if "head.dropout" in family.settings else {}
    known = paths(family.config_type).keys() - family.fixed
    free = {name: value for name, value in small.items() if name in known}
    return family.config({**rate, **free, **more})


TRANSFORMERS = {
    name: family for name, family in FAMILIES.items() if family.config_type is TransformerConfig
}

LOCAL = ("tokens", "global_every", "base")

OTHER_VALUES: dict[str, Any] = {
    "embedding": 8, "layer_sharing": (0, 0, 0, 0), "token_types": 3, "pad_id": 5, "dropout": 0.7,
    "attention_dropout": 0.7, "positions": RotaryPositions(base=50.0), "norm.kind": "rms",
    "norm.place": "pre", "norm.eps": 0.5, "norm.bias": False, "norm.embedding": False,
    "norm.first": False, "norm.final": True, "attention.kv_heads": 1, "attention.width": 4,
    "attention.bias": False, "attention.scaled": False,
    "attention.window": WindowSettings(tokens=7, global_every=2, base=50.0),
    "attention.output_dropout": 0.7, "attention.causal": True, "attention.cross": True,
    "feedforward.activation": "relu", "feedforward.gated": True, "feedforward.bias": False,
    "feedforward.up_bias": False, "feedforward.dropout": 0.7,
    "convolution": ConvolutionSettings(tokens=5, activation="gelu"), "head.activation": "relu",
    "head.mlm_activation": "gelu", "head.pooling": "mean", "head.norm": True, "head.bias": False,
    "head.dropout": 0.7, "head.dense_dropout": 0.7, "head.tag_dropout": 0.7,
    "head.choose_dropout": 0.7, "head.answer_dropout": 0.7, "head.sop_dropout": 0.7,
    "head.lm_bias": True, "head.lm_tied": False, "head.lm_scaled": True, "scale_embedding": True,
}  # fmt: skip
"""A different value for each optional setting."""


@pytest.mark.parametrize("name", sorted(OTHER_VALUES))
@pytest.mark.parametrize("family", TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_setting_survives_round_trip_or_is_rejected(family: Family, name: str) -> None:
    """Each setting survives a round trip or is rejected."""
    value = OTHER_VALUES[name]
    if at(config_of(family), name) == value:
        replacements = {
            "norm.place": "post",
            "norm.kind": "layer",
            "head.activation": "gelu",
            "head.mlm_activation": None,
            "feedforward.activation": "gelu",
        }
        value = replacements.get(name, value is False)
    more: dict[str, Any] = {"layer_sharing": (0, 0, 1, 1)} if family is ALBERT else {}
    more |= {"norm.bias": False} if name == "norm.kind" else {}  # RMSNorm has no bias
    more |= {"norm.kind": "layer"} if (name, value) == ("norm.bias", True) else {}
    more |= {"norm.place": "pre"} if name == "norm.first" else {}
    more |= {"norm.first": True} if (name, value) == ("norm.place", "post") else {}
    if name == "attention.window" and not isinstance(config_of(family).positions, RotaryPositions):
        value = WindowSettings(tokens=7)
    if family is T5:
        value = RelativePositions(buckets=8) if name == "positions" else value
        more |= dict.fromkeys(RATES, value) if name in RATES else {}
    if family is DEBERTA and name == "positions":
        value = DisentangledPositions(side_buckets=8, farthest=30)
    config = config_of(family, {**more, name: value})
    if name in family.constants:
        with pytest.raises(ConfigError, match=f"model.({'|'.join([name, *more])}) must be "):
            family.write_config(config)
    else:
        assert family.read_config(family.write_config(config)) == config


def test_other_values_cover_all_settings() -> None:
    sizes = {"vocab", "hidden", "layers", "heads", "intermediate", "max_positions"}
    assert {*OTHER_VALUES, *sizes} == set(paths(TransformerConfig))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_weight_names_are_a_bijection(family: Family) -> None:
    config = config_of(family, {"layer_sharing": (0, 1, 0, 1)} if family is ALBERT else {})
    for heads in family.architectures:
        state = build(config, sorted(heads), labels=("O", "B-x")).state_dict()
        names = list(itertools.chain(*family.names(state, config).values()))
        assert len(names) == len(set(names))
        back = family.read(state, family.write(state, config), config)
        assert back.keys() == state.keys()
        assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_settings_survive_round_trip(family: Family) -> None:
    activations: list[str | None] = sorted({*family.activations.values()})
    if not family.activation:
        activations = [None]
    elif "feedforward.activation" in family.fixed:
        activations = ["gelu"]
    for activation in activations:
        more: dict[str, Any] = {"layer_sharing": (0, 0, 1, 1)} if family is ALBERT else {}
        if "dropout" not in family.fixed:
            more |= dict.fromkeys(RATES if family is T5 else ("dropout",), 0.25)
        if "pad_id" in family.settings:
            more["pad_id"] = 3
        if activation is not None:
            more["feedforward.activation"] = activation
        config = config_of(family, more)
        assert family.read_config(family.write_config(config)) == config


UNSUPPORTED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "bert": [
        ({"position_embedding_type": "relative_key"}, r"'relative_key' \(only 'absolute'\)"),
        ({"is_decoder": True}, r"is_decoder = True \(only False\): not supported"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads = {'0': \\[1\\]}"),
        ({"per_layer_config": {"0": {}}}, "per_layer_config = {'0': {}}"),
        ({"hidden_act": "mish"}, "hidden_act must be one of gelu.*, got 'mish'"),
        ({"num_attention_heads": 3}, "must be a multiple of heads"),
    ],
    "modernbert": [
        ({"layer_types": ["sliding_attention", "full_attention"] * 2}, "equal distances"),
        ({"layer_types": "full_attention"}, "layer_types must have type list"),
        ({"layer_types": ["full_attention"]}, "must have 4 entries, got 1"),
        ({"global_attn_every_n_layers": 0}, "must be at least 1, got 0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "must be 'default'"),
        ({"rope_parameters": 3}, "rope_parameters must have type dict, got 3"),
        ({"local_attention": "wide"}, "local_attention must have type int, got 'wide'"),
    ],
    "deberta-v2": [
        ({"relative_attention": False}, "relative_attention must be True for deberta-v2"),
        ({"share_att_key": None}, "share_att_key must be True for deberta-v2, got False"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd must be 'layer_norm' for deberta-v2, got 'none'"),
        ({"pos_att_type": "c2p"}, "pos_att_type must be .*, got 'c2p'"),
        ({"pos_att_type": 3}, "pos_att_type must be .*, got 3"),
        ({"position_buckets": -1}, "position_buckets must be at least 1, got -1"),
        ({"max_relative_positions": "far"}, "max_relative_positions must be an integer, got 'far'"),
        ({"max_relative_positions": 100}, "farthest must be greater than 129"),
        ({"attention_head_size": 7}, "attention_head_size must be .*, got 7"),
        ({"embedding_size": 8}, "embedding_size must be hidden_size for deberta-v2, got 8"),
        ({"conv_kernel_size": 4}, "tokens must be odd, got 4"),
        ({"conv_kernel_size": 3, "conv_act": "mish"}, "invalid enum value 'mish'"),
        ({"pooler_dropout": 0.5}, "pooler_dropout = 0.5"),
    ],
    "nomic_bert": [
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'default'"),
        ({"rope_parameters": 3}, "rope_parameters must have rope_type .*, got 3"),
        ({"head_dim": 7}, "head_dim must be .*, got 7"),
        ({**OLDER_VALUES, "n_embd": 16, "qkv_proj_bias": True}, "qkv_proj_bias must be False"),
        ({"n_embd": 16}, "activation_function must be 'swiglu' for nomic_bert, got None"),
    ],
    "gte": [
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type must be 'layer_norm' for gte"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type must be 'rope' for gte"),
        ({"pack_qkv": False}, "pack_qkv must be True for gte, got False"),
        ({"logn_attention_scale": True}, "logn_attention_scale must be False for gte, got True"),
        ({"hidden_act": "silu"}, "hidden_act = 'silu'"),
        ({"rope_parameters": 3}, "rope_parameters must be a JSON object, got 3"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "fixed ntk for gte"),
        ({"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "fixed ntk for gte"),
        ({"rope_scaling": {"type": "ntk"}}, "invalid rotary positions"),
        ({"rope_scaling": {"type": "ntk", "factor": "two"}}, "invalid rotary positions"),
        ({"rope_scaling": {"type": "ntk", "factor": 0.5}}, "invalid rotary positions"),
        ({"rope_scaling": {"type": "ntk", "factor": 10**400}}, "invalid rotary positions"),
        ({"rope_parameters": {"rope_type": "linear"}}, "positions.factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.0}}, "positions.factor"),
    ],
}
"""Keys of a family's `config.json`, and a part of the message that rejects them."""


CASES = [(name, *row) for name, rows in UNSUPPORTED.items() for row in rows]


@pytest.mark.parametrize(("name", "keys", "message"), CASES)
def test_unsupported_settings_are_rejected(name: str, keys: dict[str, Any], message: str) -> None:
    family = FAMILIES[name]
    written = family.write_config(config_of(family))
    if family is MODERNBERT:
        written = {"vocab_size": 30, "num_hidden_layers": 4}
    with pytest.raises((ValueError, ConfigError), match=message):
        family.read_config({**written, **keys})


@pytest.mark.parametrize(
    ("family", "more", "message"),
    [
        (BERT, {"layer_sharing": (0,) * 4}, "layer_sharing must be .* for bert, got "),
        (ROBERTA, {"embedding": 8}, "embedding must be .* for roberta, got "),
        (DISTILBERT, {"token_types": 2}, "token_types must be .* for distilbert, got "),
        (OPENAI_GPT, {"feedforward.activation": "gelu"}, "one of silu, relu, gelu_tanh for openai"),
        (OPENAI_GPT, {"intermediate": 63}, "intermediate: must be 4 × hidden"),
        (ALBERT, {"layer_sharing": (0, 0, 0, 1)}, "one after another, each equally often"),
    ],
)
def test_write_config_rejects_unsupported_setting(
    family: Family, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        family.write_config(config_of(family, more))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [({}, (160_000.0, 64, 3, 10_000.0)),
     ({"global_attn_every_n_layers": 2, "local_rope_theta": 5.0}, (160_000.0, 64, 2, 5.0)),
     ({"layer_types": ["full_attention", "sliding_attention"] * 2}, (160_000.0, 64, 2, 10_000.0)),
     ({"layer_types": ["full_attention"] * 4}, (160_000.0,)),
     ({"rope_parameters": {"full_attention": {"rope_theta": 9.0}}}, (9.0, 64, 3, 10_000.0))],
)  # fmt: skip
def test_modernbert_reads_local_attention_layers(
    keys: dict[str, Any], expected: tuple[Any]
) -> None:
    found = MODERNBERT.read_config({"vocab_size": 30, "num_hidden_layers": 4, **keys})
    positions, window = found.positions, found.attention.window
    assert isinstance(positions, RotaryPositions)
    base, *local = expected
    assert positions.base == base
    assert window == (WindowSettings(**dict(zip(LOCAL, local, strict=True))) if local else None)


@pytest.mark.parametrize(
    ("keys", "base", "factor"),
    [
        ({}, 160_000.0, 1.0),
        ({"model_type": "new"}, 10_000.0, 1.0),
        ({"rope_theta": 500.0}, 500.0, 1.0),
        ({"rope_theta": 500.0, "rope_scaling": {"type": "ntk", "factor": 4.0}}, 2000.0, 2.0),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 9.0, "factor": 3.0}}, 9.0, 3.0),
    ],
)
def test_gte_reads_rotary_base_and_factor(keys: dict[str, Any], base: float, factor: float) -> None:
    """Heads have size 4, so that fixed NTK divides by the square root of its factor."""
    small = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 4}
    found = GTE.read_config({**small, **keys})
    assert found.positions == RotaryPositions(base=base, factor=factor)
    assert GTE.read_config(GTE.write_config(found)).positions == found.positions


def test_older_gte_config_has_older_defaults() -> None:
    older = GTE.read_config({"model_type": "new"})
    now = GTE.read_config({"model_type": "gte", "vocab_size": 30})
    assert (older.vocab, older.max_positions, older.pad_id) == (30_528, 2048, 0)
    assert (now.vocab, now.max_positions, now.pad_id) == (30, 8192, 1)
    assert family_of("new") is family_of("gte") is GTE
    assert family_of("newer") is family_of(["gte"]) is None


@pytest.mark.parametrize(
    ("code", "is_supported"),
    [
        ("Alibaba-NLP/new-impl--configuration.NewConfig", True),
        ("configuration_hf_alibaba_nlp_gte.GteConfig", True),  # snowflake-arctic-embed-m-v2.0
        ("modeling_hf_alibaba_nlp_gte.GteModel", True),
        ("modeling.NewForSequenceClassification", True),  # stella_en_400M_v5 and fine-tuned models
        ("modeling.MyModel", False),
        ("other/new-impl--modeling.NewModel", False),
    ],
)
def test_gte_code_is_recognized_by_name(code: str, is_supported: bool) -> None:
    assert code.startswith(GTE.code) == is_supported


@pytest.mark.parametrize("family", [MODERNBERT, NOMIC_BERT, LLAMA], ids=lambda f: f.name)
def test_write_config_rejects_position_factor(family: Family) -> None:
    config = config_of(family, {"positions": RotaryPositions(base=50.0, factor=2.0)})
    with pytest.raises(ConfigError, match=f"positions.factor is not supported by {family.name}"):
        family.write_config(config)


@pytest.mark.parametrize(
    ("order", "expected"),
    [((0, 0, 0, 0), (4, 1, 1)), ((0, 0, 1, 1), (4, 2, 1)), ((0, 1, 0, 1), (2, 1, 2)),
     ((0, 1, 2, 3), (4, 4, 1)), ((0, 1, 0, 1, 2, 3, 2, 3), (4, 2, 2))],
)  # fmt: skip
def test_albert_writes_layer_sharing(
    order: tuple[int, ...], expected: tuple[int, int, int]
) -> None:
    config = config_of(ALBERT, {"layers": len(order), "layer_sharing": order})
    written = ALBERT.write_config(config)
    names = ("num_hidden_layers", "num_hidden_groups", "inner_group_num")
    assert tuple(written[name] for name in names) == expected
    assert ALBERT.read_config(written) == config


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 0, 2), (1, 1, 1, 1)])
def test_albert_rejects_invalid_layer_sharing(order: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="layer_sharing must "):
        config_of(ALBERT, {"layer_sharing": order})


def test_roberta_positions_follow_padding_id() -> None:
    config = config_of(ROBERTA, {"pad_id": 4})
    assert ROBERTA.write_config(config)["max_position_embeddings"] == 25
    state = build(config).state_dict()
    weight = ROBERTA.write(state, config)["roberta.embeddings.position_embeddings.weight"]
    assert weight.shape[0] == 25
    assert not weight[:5].any()
    assert torch.equal(weight[5:], state["encoder.embedding.positions.weight"])


@pytest.mark.parametrize(
    ("hidden", "heads", "layers", "millions"),
    [(768, 12, 12, 11.7), (1024, 16, 24, 17.7), (2048, 16, 24, 58.7), (4096, 64, 12, 222.6)],
)
def test_albert_matches_published_parameter_counts(
    hidden: int, heads: int, layers: int, millions: float
) -> None:
    """Numbers of the released checkpoints; table 1 of Lan et al. 2020 has 12, 18, 60, and 235."""
    shape = {"hidden": hidden, "heads": heads, "intermediate": 4 * hidden}
    shape |= {"layers": layers, "layer_sharing": (0,) * layers}
    config = ALBERT.config({"vocab": 30_000, **shape})
    with torch.device("meta"):
        model = build(config, ("pooler",))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions
