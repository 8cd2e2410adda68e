"""Marian: the Transformer of Vaswani et al. 2017, which translates. Junczys-Dowmunt et al. 2018."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.families.family import Family, Special, module
from bertkit.families.keys import DECODER, NEW_WEIGHTS
from bertkit.models.config import SinusoidalPositions


def settings(side: str) -> dict[str, str]:
    """Those of one stack, as Marian and BART name them."""
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
    """The table's rows of one stack's layers, named as in Marian and BART."""
    theirs, ours = f"model.{side}.layers.{{}}.", f"{side}.blocks.{{}}."
    qkv = (f"{theirs}self_attn.{part}_proj" for part in "qkv")
    cross = {
        **module(f"{ours}cross.q", f"{theirs}encoder_attn.q_proj"),
        **module(f"{ours}cross.kv", *(f"{theirs}encoder_attn.{part}_proj" for part in "kv")),
        **module(f"{ours}cross.out", f"{theirs}encoder_attn.out_proj"),
        **module(f"{ours}cross_norm", f"{theirs}encoder_attn_layer_norm"),
    }
    return {
        **module(f"{ours}attention.qkv", *qkv),
        **module(f"{ours}attention.out", f"{theirs}self_attn.out_proj"),
        **module(f"{ours}attention_norm", f"{theirs}self_attn_layer_norm"),
        **(cross if side == "decoder" else {}),
        **module(f"{ours}feedforward.up", f"{theirs}fc1"),
        **module(f"{ours}feedforward.down", f"{theirs}fc2"),
        **module(f"{ours}feedforward_norm", f"{theirs}final_layer_norm"),
    }


_STACK: dict[str, Any] = {
    "token_types": 0,
    "positions": SinusoidalPositions(),
    "norm.embedding": False,
    "norm.eps": 1e-5,
}


def _read(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Raises: ValueError for a decoder with its own vocabulary."""
    size = theirs.get("decoder_vocab_size")
    if size is not None and size != theirs.get("vocab_size"):
        raise ValueError(f"decoder_vocab_size = {size!r}: marian is read with vocab_size only")
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
    zero_pad=True,  # Marian itself and CTranslate2 begin with zeros
)
