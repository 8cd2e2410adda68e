"""Llama: rotary embeddings, RMSNorm, gated feed-forward and grouped-query attention.

Source: Touvron et al. 2023, section 2.2; grouped-query attention: Ainslie et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.families.family import SCORES, Family, Special, causal_architectures
from bertkit.families.keys import DECODER, SPECIAL_TOKENS
from bertkit.families.rotary import rotary_base
from bertkit.models.config import RotaryPositions, TransformerConfig

BASE = 10_000.0


def _read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings of Hugging Face to settings of bertkit.

    Raises:
        ValueError: If the rotary embeddings are scaled, as in models for long texts.
    """
    rope = hf_config.get("rope_scaling") or hf_config.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"rope_parameters must be an object, got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rope_type must be 'default' for llama, got {kind!r}")
    base = rope.get("rope_theta", hf_config.get("rope_theta", BASE))
    return {"positions": {"kind": "rotary", "base": base}}


def _write(config: TransformerConfig) -> dict[str, Any]:
    base = rotary_base(config, "llama")
    return {"rope_theta": base, "rope_parameters": {"rope_type": "default", "rope_theta": base}}


_LAYER = "model.layers.{}."

LLAMA = Family(
    name="llama",
    vocab=32_000,
    settings={
        "vocab": "vocab_size",
        "hidden": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "attention.kv_heads": "num_key_value_heads",
        "attention.width": "head_dim",
        "intermediate": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "norm.eps": "rms_norm_eps",
        "attention_dropout": "attention_dropout",
        "head.lm_tied": "tie_word_embeddings",
    },
    fixed={
        "token_types": 0,
        "dropout": 0.0,
        "norm.kind": "rms",
        "norm.place": "pre",
        "norm.bias": False,
        "norm.embedding": False,
        "norm.final": True,
        "attention.causal": True,
        "attention.bias": False,
        "feedforward.gated": True,
        "feedforward.bias": False,
    },
    defaults={
        "hidden": 4096,
        "layers": 32,
        "heads": 32,
        "intermediate": 11_008,
        "max_positions": 2048,
        "norm.eps": 1e-6,
        "attention_dropout": 0.0,
        "feedforward.activation": "silu",
        "positions": RotaryPositions(base=BASE),
        "head.lm_tied": False,
    },
    neutral={"attention_bias": (False,), "mlp_bias": (False,), "pretraining_tp": (1,)},
    irrelevant={**DECODER, "pad_token_id": SPECIAL_TOKENS},
    special=Special(
        ("positions",), _read, _write, ("rope_parameters", "rope_scaling", "rope_theta")
    ),
    roles=("eos",),
    written_roles=("eos", "pad"),
    token_ids={"bos_token_id": "bos"},
    body={
        "encoder.embedding.tokens.weight": "model.embed_tokens.weight",
        "encoder.blocks.{}.attention_norm.weight": f"{_LAYER}input_layernorm.weight",
        "encoder.blocks.{}.attention.qkv.weight": tuple(
            f"{_LAYER}self_attn.{part}_proj.weight" for part in "qkv"
        ),
        "encoder.blocks.{}.attention.out.weight": f"{_LAYER}self_attn.o_proj.weight",
        "encoder.blocks.{}.feedforward_norm.weight": f"{_LAYER}post_attention_layernorm.weight",
        "encoder.blocks.{}.feedforward.up.weight": tuple(
            f"{_LAYER}mlp.{part}_proj.weight" for part in ("gate", "up")
        ),
        "encoder.blocks.{}.feedforward.down.weight": f"{_LAYER}mlp.down_proj.weight",
        "encoder.norm.weight": "model.norm.weight",
    },
    prefix="model.",
    heads={"lm": {"output": "lm_head.weight"}, **SCORES},
    some=("lm_head.weight",),
    derived={},
    ignored=(".rotary_emb.inv_freq",),
    architectures=causal_architectures("Llama", "LlamaForCausalLM"),
)
