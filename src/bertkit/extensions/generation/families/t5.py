"""T5: an encoder-decoder model that handles every task as text-to-text. Raffel et al. 2020.

Version 1.1 has gated feed-forward layers (Shazeer 2020) and a separate output matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.errors import ConfigError
from bertkit.families.family import Family, Special
from bertkit.families.keys import DECODER, NEW_WEIGHTS, UNUSED_HEAD
from bertkit.models.config import RelativePositions, TransformerConfig

KINDS = {
    "relu": ("relu", False),
    "relu2": ("relu2", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "silu": ("silu", False),
    "gated-relu": ("relu", True),
    "gated-relu2": ("relu2", True),
    "gated-gelu": ("gelu_tanh", True),
    "gated-silu": ("silu", True),
}
"""Activation of each Hugging Face feed-forward type, and whether it is gated."""

SCALE_KEY = "scale_decoder_outputs"
"""Setting in transformers 5 for scaling the states before the output matrix. Older versions scale
them if `tie_word_embeddings` is true."""

RATES = ("dropout", "attention_dropout", "feedforward.dropout")


def _read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings of Hugging Face to settings of bertkit.

    Raises:
        ValueError: If the type of the feed-forward layers is not supported, or contradicts another
            setting.
    """
    kind = hf_config.get("feed_forward_proj", "relu")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"feed_forward_proj must be one of {', '.join(KINDS)}, got {kind!r}")
    activation, gated = KINDS[kind]
    names = {"gelu": "gelu_new" if kind == "gated-gelu" else "gelu"}
    function = kind.removeprefix("gated-")
    for name, value in (("dense_act_fn", names.get(function, function)), ("is_gated_act", gated)):
        if hf_config.get(name, value) != value:
            raise ValueError(
                f"{name} = {hf_config[name]!r} contradicts feed_forward_proj = {kind!r}; remove "
                f"{name}"
            )
    buckets = hf_config.get("relative_attention_num_buckets", 32)
    return {
        "feedforward.activation": activation,
        "feedforward.gated": gated,
        "positions": {"kind": "relative", "buckets": buckets},
        **dict.fromkeys(RATES, hf_config.get("dropout_rate", 0.1)),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    if not isinstance(config.positions, RelativePositions) or config.positions.learned:
        raise ConfigError('model.positions: must have kind = "relative" and learned = false for t5')
    kind = config.feedforward.activation, config.feedforward.gated
    names = [name for name, value in KINDS.items() if value == kind]
    if not names:
        raise ConfigError(f"model.feedforward.activation = {kind[0]!r} is not supported by t5")
    if len({config.rate(path) for path in (*RATES, "head.dropout")}) > 1:
        raise ConfigError("model.dropout: all dropout rates must be equal for t5")
    return {
        "feed_forward_proj": names[0],
        "relative_attention_num_buckets": config.positions.buckets,
        "dropout_rate": config.dropout,
    }


def _is_scaled(hf_config: Mapping[str, Any]) -> Any:
    """Return whether states are scaled before the output matrix.

    By default, they are scaled if the output matrix is tied to the embedding matrix.
    """
    scaled = hf_config.get(SCALE_KEY)
    return hf_config.get("tie_word_embeddings", True) if scaled is None else scaled


def _read_decoder(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    layers = hf_config.get("num_decoder_layers") or hf_config.get("num_layers", 6)
    return {**_read(hf_config), "layers": layers, "head.lm_scaled": _is_scaled(hf_config)}


def _write_decoder(config: TransformerConfig) -> dict[str, Any]:
    scaled = config.head.lm_scaled
    return {**_write(config), "num_decoder_layers": config.layers, SCALE_KEY: scaled}


def _layers(side: str) -> dict[str, str | tuple[str, ...]]:
    """Map bertkit's names of the encoder's or decoder's weights to the names in T5."""
    hf_layer, block = f"{side}.block.{{}}.layer.", f"{side}.blocks.{{}}."
    last = 2 if side == "decoder" else 1
    names: dict[str, str | tuple[str, ...]] = {
        f"{side}.embedding.tokens.weight": "shared.weight",
        f"{side}.relative.table.weight": (
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        f"{block}attention.qkv.weight": tuple(
            f"{hf_layer}0.SelfAttention.{part}.weight" for part in "qkv"
        ),
        f"{block}attention.out.weight": f"{hf_layer}0.SelfAttention.o.weight",
        f"{block}attention_norm.weight": f"{hf_layer}0.layer_norm.weight",
        f"{block}feedforward.up.weight": f"{hf_layer}{last}.DenseReluDense.wi.weight",
        f"{block}feedforward.down.weight": f"{hf_layer}{last}.DenseReluDense.wo.weight",
        f"{block}feedforward_norm.weight": f"{hf_layer}{last}.layer_norm.weight",
        f"{side}.norm.weight": f"{side}.final_layer_norm.weight",
    }
    if side == "decoder":
        cross = f"{hf_layer}1.EncDecAttention."
        names |= {
            f"{block}cross.q.weight": f"{cross}q.weight",
            f"{block}cross.kv.weight": tuple(f"{cross}{part}.weight" for part in "kv"),
            f"{block}cross.out.weight": f"{cross}o.weight",
            f"{block}cross_norm.weight": f"{hf_layer}1.layer_norm.weight",
        }
    return names


def _gated(side: str, last: int) -> dict[str, tuple[str, ...]]:
    layer = f"{side}.block.{{}}.layer.{last}.DenseReluDense."
    return {
        f"{side}.blocks.{{}}.feedforward.up.weight": tuple(f"{layer}wi_{n}.weight" for n in "01")
    }


_SETTINGS = {
    "vocab": "vocab_size",
    "hidden": "d_model",
    "heads": "num_heads",
    "attention.width": "d_kv",
    "intermediate": "d_ff",
    "max_positions": "n_positions",
    "pad_id": "pad_token_id",
    "norm.eps": "layer_norm_epsilon",
}
_STACK: dict[str, Any] = {
    "token_types": 0,
    "norm.kind": "rms",
    "norm.place": "pre",
    "norm.bias": False,
    "norm.embedding": False,
    "norm.final": True,
    "attention.bias": False,
    "attention.scaled": False,
    "feedforward.bias": False,
}
_DEFAULTS: dict[str, Any] = {
    "hidden": 512,
    "layers": 6,
    "heads": 8,
    "attention.width": 64,
    "intermediate": 2048,
    "norm.eps": 1e-6,
    "positions": RelativePositions(),
    "feedforward.activation": "relu",
    "feedforward.dropout": 0.1,
}
ALIASES = {
    "head_dim": "d_kv",
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}
_KEYS = (
    "dropout_rate",
    "feed_forward_proj",
    "is_gated_act",
    "num_layers",
    "relative_attention_num_buckets",
)
_SPECIAL = ("positions", "feedforward.activation", "feedforward.gated", *RATES)

T5 = Family(
    name="t5",
    vocab=32_128,
    settings={**_SETTINGS, "layers": "num_layers"},
    fixed=_STACK,
    defaults=_DEFAULTS,
    activation="dense_act_fn",
    aliases=ALIASES,
    neutral={"is_encoder_decoder": (True,), "relative_attention_max_distance": (128,)},
    irrelevant={**DECODER, "classifier_dropout": UNUSED_HEAD, "initializer_factor": NEW_WEIGHTS},
    special=Special(_SPECIAL, _read, _write, _KEYS),
    roles=("pad", "unk", "eos"),
    written_roles=("pad", "eos"),
    body={**_layers("encoder"), **_layers("decoder")},
    gated={**_gated("encoder", 1), **_gated("decoder", 2)},
    prefix="",
    heads={"lm": {"output": "lm_head.weight"}},
    some=("lm_head.weight",),
    derived={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    ignored=("EncDecAttention.relative_attention_bias.weight",),
    architectures={frozenset(): "T5Model", frozenset({"lm"}): "T5ForConditionalGeneration"},
    decoder=Family(
        name="t5",
        settings={**_SETTINGS, "head.lm_tied": "tie_word_embeddings"},
        fixed={**_STACK, "attention.causal": True, "attention.cross": True},
        defaults={**_DEFAULTS, "head.lm_scaled": True},
        activation="dense_act_fn",
        aliases=ALIASES,
        special=Special(
            ("layers", "head.lm_scaled", *_SPECIAL),
            _read_decoder,
            _write_decoder,
            ("num_decoder_layers", SCALE_KEY),
        ),
        body={},
        heads={},
        prefix="",
        derived={},
        architectures={},
    ),
    start="pad",
)
