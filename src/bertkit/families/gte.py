"""GTE v1.5 and mGTE: BERT with rotary positions and gated layers. Zhang et al. 2024.

The paper omits which layers have biases, and how the angles are scaled (fixed NTK scaling). These
details come from Alibaba-NLP/new-impl, the code that was published with the models. A checkpoint
uses the names of this code (`model_type` `new`) or the names of transformers 5 (`gte`) for its
settings and weights. bertkit saves the names of transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.errors import ConfigError
from bertkit.families.family import (
    BERT_SETTINGS,
    CRF,
    Family,
    Special,
    architectures,
    embeddings,
    masked_lm,
    module,
    pooled,
)
from bertkit.models.config import RotaryPositions, TransformerConfig

ROTARY = 160_000.0
OLDER = {"vocab": 30_528, "max_positions": 2048, "pad_id": 0}
OLDER_ROTARY = 10_000.0
"""Default values of a `config.json` with `model_type` `new`."""

VALUES: Mapping[str, Any] = {
    "layer_norm_type": "layer_norm",
    "position_embedding_type": "rope",
    "pack_qkv": True,
    "logn_attention_scale": False,
}
"""Keys of `config.json` -> their only supported value, which is also the default."""


def _read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a `config.json` to special settings. Raises ValueError for unsupported values."""
    for name, only in VALUES.items():
        value = hf_config.get(name, only)
        if value != only:
            raise ValueError(f"{name} must be {only!r} for gte, got {value!r}")
    older = hf_config.get("model_type") == "new"
    defaults = {o: v for o, v in OLDER.items() if hf_config.get(BERT_SETTINGS[o]) is None}
    return {**(defaults if older else {}), "positions": _read_positions(hf_config, older)}


def _read_positions(hf_config: Mapping[str, Any], older: bool) -> dict[str, Any]:
    """Convert the settings of rotary positions.

    Fixed NTK scaling becomes a larger base and a factor by which positions are divided.
    """
    name = "rope_scaling" if hf_config.get("rope_scaling") is not None else "rope_parameters"
    rope = hf_config.get(name)
    rope = {} if rope is None else rope
    if not isinstance(rope, dict):
        raise ValueError(f"{name} must be a JSON object, got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "ntk") or rope.get("mixed_b") is not None:
        raise ValueError(f"{name} must be default, linear, or fixed ntk for gte, got {rope!r}")
    default = OLDER_ROTARY if older else ROTARY
    base = rope.get("rope_theta", hf_config.get("rope_theta", default))
    factor = 1.0 if kind == "default" else rope.get("factor")
    if kind == "ntk":
        hidden, heads = hf_config.get("hidden_size", 768), hf_config.get("num_attention_heads", 12)
        values = (base, factor, hidden, heads)
        if not all(isinstance(value, int | float) and 1 <= value < 1e12 for value in values):
            raise ValueError(
                f"invalid rotary positions: rope_theta = {base!r}, {name} = {rope!r}, "
                f"hidden_size = {hidden!r}, num_attention_heads = {heads!r}"
            )
        base, factor = base * factor, factor ** (2 * heads / hidden)
    return {"kind": "rotary", "base": base, "factor": factor}


def _write(config: TransformerConfig) -> dict[str, Any]:
    positions = config.positions
    if not isinstance(positions, RotaryPositions):
        raise ConfigError('model.positions must have kind = "rotary" for gte')
    angles: dict[str, Any] = {"rope_type": "default", "rope_theta": positions.base}
    if positions.factor != 1.0:
        angles |= {"rope_type": "linear", "factor": positions.factor}
    return {"rope_parameters": angles}


_LAYER, _MLP = "gte.layers.{}.", "gte.layers.{}.mlp."
_QKV = [f"{_LAYER}self_attn.{part}_proj" for part in "qkv"]
_OLDER = r"(?:gte\.|new\.)?encoder\.layer\.(\d+)\."

GTE = Family(
    name="gte",
    code=(
        "Alibaba-NLP/new-impl--",
        # These names refer to code in the checkpoints of Snowflake, and in models that were
        # fine-tuned from them.
        "configuration_hf_alibaba_nlp_gte.GteConfig",
        "modeling_hf_alibaba_nlp_gte.Gte",
        "configuration.NewConfig",
        "modeling.NewModel",
        "modeling.NewFor",
    ),
    vocab=250_048,
    settings={**BERT_SETTINGS, "head.dropout": "classifier_dropout"},
    fixed={
        "feedforward.activation": "gelu",
        "feedforward.gated": True,
        "feedforward.up_bias": False,
        "feedforward.dropout": "dropout",
    },
    defaults={
        "max_positions": 8192,
        "token_types": 1,
        "pad_id": 1,
        "attention_dropout": 0.0,
        "positions": RotaryPositions(base=ROTARY),
    },
    neutral={"hidden_act": ("gelu",), "tie_word_embeddings": (True,)},
    special=Special(
        ("positions",), _read, _write, (*VALUES, "rope_parameters", "rope_scaling", "rope_theta")
    ),
    body={
        **embeddings("gte.embeddings.", positions=False),
        **module("encoder.blocks.{}.attention.qkv", *_QKV),
        **module("encoder.blocks.{}.attention.out", f"{_LAYER}self_attn.o_proj"),
        **module("encoder.blocks.{}.attention_norm", f"{_LAYER}post_attention_layernorm"),
        "encoder.blocks.{}.feedforward.up.weight": (
            f"{_MLP}gate_proj.weight",
            f"{_MLP}up_proj.weight",
        ),
        **module("encoder.blocks.{}.feedforward.down", f"{_MLP}down_proj"),
        **module("encoder.blocks.{}.feedforward_norm", f"{_LAYER}post_mlp_layernorm"),
    },
    prefix="gte.",
    heads={
        "mlm": masked_lm("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.bias"),
        "classify": pooled("gte.pooler.dense", "classifier"),
        "tag": module("out", "classifier"),
        "crf": {**module("out", "classifier"), **CRF},
    },
    derived={"lm_head.decoder.weight": "gte.embeddings.word_embeddings.weight"},
    spellings={
        rf"{_OLDER}attention\.qkv_proj\.(\w+)": tuple(
            rf"gte.layers.\1.self_attn.{part}_proj.\2" for part in "qkv"
        ),
        rf"{_OLDER}attention\.(o_proj\.\w+)": (r"gte.layers.\1.self_attn.\2",),
        rf"{_OLDER}attn_ln\.(\w+)": (r"gte.layers.\1.post_attention_layernorm.\2",),
        rf"{_OLDER}mlp\.up_gate_proj\.(\w+)": tuple(
            rf"gte.layers.\1.mlp.{part}_proj.\2" for part in ("up", "gate")
        ),
        rf"{_OLDER}mlp\.(down_proj\.\w+)": (r"gte.layers.\1.mlp.\2",),
        rf"{_OLDER}mlp_ln\.(\w+)": (r"gte.layers.\1.post_mlp_layernorm.\2",),
        r"new\.(.+)": (r"gte.\1",),
        r"lm_head\.norm\.(\w+)": (r"lm_head.layer_norm.\1",),
    },
    architectures=architectures("Gte", missing=("choose", "answer")),
)
