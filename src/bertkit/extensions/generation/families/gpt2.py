"""GPT-2: a decoder-only Transformer with causal attention. Radford et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.errors import ConfigError
from bertkit.families.family import POSITIONS, SCORES, Family, Special, causal_architectures, module
from bertkit.families.keys import DECODER, SPECIAL_TOKENS, UNUSED_HEAD
from bertkit.models.config import TransformerConfig

_LAYER = "transformer.h.{}."


def read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings of Hugging Face to settings of bertkit.

    Raises:
        ValueError: If the dropout rates of embeddings and residuals differ.
    """
    embedding, residual = (hf_config.get(f"{name}_pdrop", 0.1) for name in ("embd", "resid"))
    if embedding != residual:
        raise ValueError(
            f"embd_pdrop must be equal to resid_pdrop, got {embedding!r} and {residual!r}"
        )
    width = hf_config.get("n_inner")
    if width is None:
        hidden = hf_config.get("n_embd", 768)
        width = 4 * hidden if isinstance(hidden, int) else hidden
    return {"intermediate": width, "dropout": embedding}


def write(config: TransformerConfig) -> dict[str, Any]:
    """Convert settings of bertkit to settings of Hugging Face.

    Raises:
        ConfigError: If the dropout rate of the head differs from the dropout rate of the model.
    """
    if config.dropout != config.rate("head.dropout"):
        raise ConfigError(
            "model.head.dropout: must be equal to model.dropout for GPT; remove model.head.dropout"
        )
    dropout = dict.fromkeys(("embd_pdrop", "resid_pdrop"), config.dropout)
    return {"n_inner": config.intermediate, **dropout}


ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
SUMMARY = {
    f"summary_{part}": UNUSED_HEAD
    for part in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")
}

GPT2 = Family(
    name="gpt2",
    vocab=50_257,
    settings={
        "vocab": "vocab_size",
        "hidden": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "max_positions": "n_positions",
        "norm.eps": "layer_norm_epsilon",
        "attention_dropout": "attn_pdrop",
    },
    fixed={
        "token_types": 0,
        "norm.place": "pre",
        "norm.embedding": False,
        "norm.final": True,
        "attention.causal": True,
    },
    defaults={"max_positions": 1024, "norm.eps": 1e-5, "feedforward.activation": "gelu_tanh"},
    activation="activation_function",
    aliases=ALIASES,
    neutral={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    irrelevant={
        **DECODER,
        **SUMMARY,
        "pad_token_id": SPECIAL_TOKENS,
        "reorder_and_upcast_attn": "it makes attention use fp32, as bertkit does on CPUs",
    },
    special=Special(
        ("intermediate", "dropout"), read, write, ("n_inner", "embd_pdrop", "resid_pdrop")
    ),
    roles=("eos",),
    written_roles=("eos", "pad"),
    token_ids={"bos_token_id": "bos"},
    body={
        "encoder.embedding.tokens.weight": "transformer.wte.weight",
        POSITIONS: "transformer.wpe.weight",
        **module("encoder.blocks.{}.attention_norm", f"{_LAYER}ln_1"),
        **module("encoder.blocks.{}.attention.qkv", f"{_LAYER}attn.c_attn"),
        **module("encoder.blocks.{}.attention.out", f"{_LAYER}attn.c_proj"),
        **module("encoder.blocks.{}.feedforward_norm", f"{_LAYER}ln_2"),
        **module("encoder.blocks.{}.feedforward.up", f"{_LAYER}mlp.c_fc"),
        **module("encoder.blocks.{}.feedforward.down", f"{_LAYER}mlp.c_proj"),
        **module("encoder.norm", "transformer.ln_f"),
    },
    prefix="transformer.",
    heads={"lm": {}, **SCORES},
    derived={"lm_head.weight": "transformer.wte.weight"},
    ignored=(".attn.bias", ".attn.masked_bias"),
    transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"),
    architectures=causal_architectures("GPT2", "GPT2LMHeadModel"),
)
