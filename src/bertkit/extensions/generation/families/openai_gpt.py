"""GPT: a causal stack whose norms stand behind its sublayers. Radford et al. 2018, section 4.1."""

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


def _read(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Raises: ValueError as GPT-2's; `n_inner` is none of its settings."""
    return read_gpt2({**theirs, "n_inner": None})


def _write(config: TransformerConfig) -> dict[str, Any]:
    if config.intermediate != 4 * config.hidden:
        raise ConfigError(
            f"model.intermediate = {config.intermediate}: every openai-gpt model has 4 × hidden, "
            f"{4 * config.hidden}; change it or choose another family"
        )
    written = write_gpt2(config)
    del written["n_inner"]
    return written


OPENAI_GPT = replace(
    GPT2,
    name="openai-gpt",
    vocab=40_478,
    fixed={"token_types": 0, "norm.embedding": False, "attention.causal": True},
    defaults={"norm.eps": 1e-5, "feedforward.activation": "gelu_tanh"},
    activation="afn",
    # its "gelu" is the form with tanh
    activations={"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu_tanh"},
    neutral={"tie_word_embeddings": (True,)},
    irrelevant={**DECODER, **SUMMARY, "pad_token_id": SPECIAL_TOKENS},
    special=Special(("intermediate", "dropout"), _read, _write, ("embd_pdrop", "resid_pdrop")),
    roles=(),
    token_ids={},
    body={
        **{ours: theirs for ours, theirs in GPT2.body.items() if ".blocks." in ours},
        "encoder.embedding.tokens.weight": "transformer.tokens_embed.weight",
        POSITIONS: "transformer.positions_embed.weight",
    },
    derived={"lm_head.weight": "transformer.tokens_embed.weight"},
    ignored=(".attn.bias", ".position_ids"),
    architectures=causal_architectures("OpenAIGPT", "OpenAIGPTLMHeadModel"),
)
