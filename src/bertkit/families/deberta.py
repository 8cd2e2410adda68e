"""DeBERTa, versions 2 and 3, with disentangled attention. He et al. 2021.

Two details that the paper omits come from microsoft/DeBERTa. All layers share one normalized table
of distance buckets, which each layer projects by the matrices that it also applies to tokens. The
larger models of version 2 have a convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.errors import ConfigError
from bertkit.families.family import (
    BERT_SETTINGS,
    TOKEN_HEADS,
    Family,
    Special,
    architectures,
    bert_layers,
    embeddings,
    masked_lm,
    module,
    pooled,
)
from bertkit.models.config import DisentangledPositions, TransformerConfig

VALUES: Mapping[str, tuple[Any, Any]] = {
    "relative_attention": (True, False),
    "position_biased_input": (False, True),
    "share_att_key": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
    "pos_att_type": ("p2c|c2p", ""),
    "conv_groups": (1, 1),
}
"""Keys of `config.json` -> the only supported value, and the value if the key is missing."""

TERMS = {"p2c", "c2p"}
HIDDEN, HEADS = 1536, 24


def _read(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a `config.json` to special settings. Raises ValueError for unsupported values."""
    for name, (only, default) in VALUES.items():
        value = hf.get(name)
        value = default if value is None else value
        terms = value.lower().split("|") if isinstance(value, str) else value
        is_supported = value == only
        # The value is a string or a list, with its terms in any order.
        if name == "pos_att_type":
            is_supported = isinstance(terms, list) and {str(t).strip() for t in terms} == TERMS
        if not is_supported:
            raise ValueError(f"{name} must be {only!r} for deberta-v2, got {value!r}")
    hidden, heads = hf.get("hidden_size", HIDDEN), hf.get("num_attention_heads", HEADS)
    width = hf.get("attention_head_size")
    if isinstance(width, int) and isinstance(heads, int) and width * heads != hidden:
        raise ValueError(
            "attention_head_size must be hidden_size / num_attention_heads for deberta-v2, "
            f"got {width}"
        )
    for name in ("embedding_size", "pooler_hidden_size"):
        value = hf.get(name)
        if value is not None and value != hidden:
            raise ValueError(f"{name} must be hidden_size for deberta-v2, got {value!r}")
    buckets, farthest = hf.get("position_buckets", -1), hf.get("max_relative_positions", -1)
    if not isinstance(buckets, int) or buckets < 1:
        raise ValueError(f"position_buckets must be at least 1, got {buckets!r}")
    if not isinstance(farthest, int):
        raise ValueError(f"max_relative_positions must be an integer, got {farthest!r}")
    tokens = hf.get("conv_kernel_size", 0)
    convolution = {"tokens": tokens, "activation": hf.get("conv_act", "tanh")}
    return {
        "positions": {
            "kind": "disentangled",
            "side_buckets": buckets,
            "farthest": farthest if farthest > 0 else None,
        },
        "convolution": convolution if tokens else None,
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    positions, convolution = config.positions, config.convolution
    if not isinstance(positions, DisentangledPositions):
        raise ConfigError('model.positions must have kind = "disentangled" for deberta-v2')
    written = {name: only for name, (only, _) in VALUES.items()}
    written |= {
        "position_buckets": positions.side_buckets,
        "max_relative_positions": positions.farthest or -1,
        # The MLM head is saved with the weights and names of microsoft/DeBERTa.
        "legacy": False,
    }
    if convolution is not None:
        written |= {"conv_kernel_size": convolution.tokens, "conv_act": convolution.activation}
    return written


_KEYS = (
    *VALUES,
    "attention_head_size",
    "conv_act",
    "conv_kernel_size",
    "embedding_size",
    "max_relative_positions",
    "pooler_hidden_size",
    "position_buckets",
)
_POOLED = pooled("pooler.dense", "classifier")
_MASKED, _LEGACY = "lm_predictions.lm_head.", "cls.predictions."

DEBERTA = Family(
    name="deberta-v2",
    vocab=128_100,
    settings={**BERT_SETTINGS, "head.dropout": "cls_dropout"},
    fixed={"head.activation": "gelu", "head.tag_dropout": "dropout"},
    defaults={
        "hidden": HIDDEN,
        "layers": 24,
        "heads": HEADS,
        "intermediate": 6144,
        "token_types": 0,
        "norm.eps": 1e-7,
        "positions": DisentangledPositions(),
    },
    neutral={"pooler_dropout": (0.0,), "pooler_hidden_act": ("gelu",)},
    irrelevant={"legacy": "the names of the weights determine the MLM head"},
    special=Special(("positions", "convolution"), _read, _write, _KEYS),
    body={
        **embeddings("deberta.embeddings.", positions=False),
        **bert_layers("deberta.encoder.layer.{}.", "_proj"),
        "encoder.distances.table.weight": "deberta.encoder.rel_embeddings.weight",
        **module("encoder.distances.norm", "deberta.encoder.LayerNorm"),
        **module("encoder.convolution.conv", "deberta.encoder.conv.conv"),
        **module("encoder.convolution.norm", "deberta.encoder.conv.LayerNorm"),
    },
    prefix="deberta.",
    heads={
        "mlm": masked_lm(f"{_MASKED}dense", f"{_MASKED}LayerNorm", f"{_MASKED}bias"),
        "classify": _POOLED,
        "choose": _POOLED,
        **TOKEN_HEADS,
    },
    derived={
        f"{_LEGACY}decoder.weight": "deberta.embeddings.word_embeddings.weight",
        f"{_LEGACY}decoder.bias": f"{_MASKED}bias",
    },
    spellings={
        r"cls\.predictions\.transform\.(.+)": (rf"{_MASKED}\1",),
        r"cls\.predictions\.bias": (f"{_MASKED}bias",),
    },
    ignored=(
        # Only pretraining uses these weights: the absolute positions in the mask decoder, and the
        # head for replaced token detection.
        "deberta.embeddings.position_ids",
        "deberta.embeddings.position_embeddings.weight",
        *(
            f"mask_predictions.{part}.{kind}"
            for part in ("dense", "LayerNorm", "classifier")
            for kind in ("weight", "bias")
        ),
    ),
    architectures=architectures("DebertaV2"),
)
