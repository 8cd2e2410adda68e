"""GPT: a decoder-only Transformer with post-norm layers. Radford et al. 2018, section 4.1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertkit.errors import ConfigError
from bertkit.extensions.generation.families.gpt2 import GPT2, SUMMARY
from bertkit.extensions.generation.families.gpt2 import read as read_gpt2
from bertkit.extensions.generation.families.gpt2 import write as write_gpt2
from bertkit.families.family import POSITIONS, Special, causal_architectures
from bertkit.families.keys import DECODER, SPECIAL_TOKENS
from bertkit.models.config import TransformerConfig


def _read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings of Hugging Face as for GPT-2, but ignore `n_inner`."""
    return read_gpt2({**hf_config, "n_inner": None})


def _write(config: TransformerConfig) -> dict[str, Any]:
    if config.intermediate != 4 * config.hidden:
        raise ConfigError(
            f"model.intermediate: must be 4 × hidden = {4 * config.hidden} for openai-gpt, got "
            f"{config.intermediate}; change model.intermediate, or use another family"
        )
    hf_config = write_gpt2(config)
    del hf_config["n_inner"]
    return hf_config


OPENAI_GPT = replace(
    GPT2,
    name="openai-gpt",
    vocab=40_478,
    fixed={"token_types": 0, "norm.embedding": False, "attention.causal": True},
    defaults={"norm.eps": 1e-5, "feedforward.activation": "gelu_tanh"},
    activation="afn",
    # The "gelu" of OpenAI GPT is the tanh approximation.
    activations={"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu_tanh"},
    neutral={"tie_word_embeddings": (True,)},
    irrelevant={**DECODER, **SUMMARY, "pad_token_id": SPECIAL_TOKENS},
    special=Special(("intermediate", "dropout"), _read, _write, ("embd_pdrop", "resid_pdrop")),
    roles=(),
    token_ids={},
    body={
        **{name: hf_name for name, hf_name in GPT2.body.items() if ".blocks." in name},
        "encoder.embedding.tokens.weight": "transformer.tokens_embed.weight",
        POSITIONS: "transformer.positions_embed.weight",
    },
    derived={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored=(".attn.bias", ".position_ids"),
    architectures=causal_architectures("OpenAIGPT", "OpenAIGPTLMHeadModel"),
)
