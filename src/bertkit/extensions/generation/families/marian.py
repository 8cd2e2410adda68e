"""Marian: the Transformer of Vaswani et al. 2017, for translation. Junczys-Dowmunt et al. 2018."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.families.family import Family, Special, module
from bertkit.families.keys import DECODER, NEW_WEIGHTS
from bertkit.models.config import SinusoidalPositions


def settings(side: str) -> dict[str, str]:
    """Map the names of the encoder's or decoder's settings to the names in Marian and BART."""
    return {
        "vocab": "vocab_size",
        "hidden": "d_model",
        "layers": f"{side}_layers",
        "heads": f"{side}_attention_heads",
        "intermediate": f"{side}_ffn_dim",
        "max_positions": "max_position_embeddings",
        "pad_id": "pad_token_id",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "feedforward.dropout": "activation_dropout",
        "scale_embedding": "scale_embedding",
    }


def layers(side: str) -> dict[str, str | tuple[str, ...]]:
    """Map the names of the encoder's or decoder's layer weights to the names in Marian and BART."""
    hf_layer, block = f"model.{side}.layers.{{}}.", f"{side}.blocks.{{}}."
    qkv = (f"{hf_layer}self_attn.{part}_proj" for part in "qkv")
    cross = {
        **module(f"{block}cross.q", f"{hf_layer}encoder_attn.q_proj"),
        **module(f"{block}cross.kv", *(f"{hf_layer}encoder_attn.{part}_proj" for part in "kv")),
        **module(f"{block}cross.out", f"{hf_layer}encoder_attn.out_proj"),
        **module(f"{block}cross_norm", f"{hf_layer}encoder_attn_layer_norm"),
    }
    return {
        **module(f"{block}attention.qkv", *qkv),
        **module(f"{block}attention.out", f"{hf_layer}self_attn.out_proj"),
        **module(f"{block}attention_norm", f"{hf_layer}self_attn_layer_norm"),
        **(cross if side == "decoder" else {}),
        **module(f"{block}feedforward.up", f"{hf_layer}fc1"),
        **module(f"{block}feedforward.down", f"{hf_layer}fc2"),
        **module(f"{block}feedforward_norm", f"{hf_layer}final_layer_norm"),
    }


_STACK: dict[str, Any] = {
    "token_types": 0,
    "positions": SinusoidalPositions(),
    "norm.embedding": False,
    "norm.eps": 1e-5,
}


def _read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings of Hugging Face that have no counterpart in bertkit.

    Raises:
        ValueError: If the decoder has its own vocabulary.
    """
    size = hf_config.get("decoder_vocab_size")
    if size is not None and size != hf_config.get("vocab_size"):
        raise ValueError(f"decoder_vocab_size must be equal to vocab_size for marian, got {size!r}")
    return {}


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (True,),
    "tie_word_embeddings": (True,),
    "encoder_layerdrop": (0.0,),
    "decoder_layerdrop": (0.0,),
}
ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
_DEFAULTS: dict[str, Any] = {"max_positions": 1024, "pad_id": 58_100, "attention_dropout": 0.0}
_DEFAULTS |= {"hidden": 1024, "heads": 16, "intermediate": 4096}

MARIAN = Family(
    name="marian",
    vocab=58_101,
    settings=settings("encoder"),
    fixed=_STACK,
    defaults=_DEFAULTS,
    activation="activation_function",
    aliases=ALIASES,
    neutral={**NEUTRAL, "share_encoder_decoder_embeddings": (True,)},
    irrelevant={**DECODER, "init_std": NEW_WEIGHTS},
    special=Special((), _read, lambda _: {}, ("decoder_vocab_size",)),
    roles=("pad", "unk", "eos"),
    written_roles=("pad", "eos"),
    body={
        "encoder.embedding.tokens.weight": "model.shared.weight",
        "decoder.embedding.tokens.weight": "model.shared.weight",
        **layers("encoder"),
        **layers("decoder"),
    },
    prefix="model.",
    heads={"lm": {"bias": "final_logits_bias"}},
    derived={
        "lm_head.weight": "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    },
    sinusoids=("embed_positions.weight",),
    rows=("final_logits_bias",),
    architectures={frozenset(): "MarianModel", frozenset({"lm"}): "MarianMTModel"},
    decoder=Family(
        name="marian",
        settings=settings("decoder"),
        fixed={**_STACK, "attention.causal": True, "attention.cross": True, "head.lm_bias": True},
        defaults=_DEFAULTS,
        activation="activation_function",
        aliases=ALIASES,
        body={},
        heads={},
        prefix="",
        derived={},
        architectures={},
    ),
    start="pad",
    # The first decoder input of Marian and CTranslate2 is a zero vector.
    zero_pad=True,
)
