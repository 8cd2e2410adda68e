"""DeBERTa, versions 2 and 3: queries and keys meet vectors of distances. He et al. 2021.

Source of what the paper does not say (one table of buckets, normalized, that all layers read by the
matrices of their tokens; the convolution of the larger models of version 2): microsoft/DeBERTa.
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
    bert_layers,
    embeddings,
    module,
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
"""Theirs that all published models have -> the value, and what it is where a file is silent."""

BOTH = {"p2c", "c2p"}
HIDDEN, HEADS = 1536, 24


def _read(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Raises: ValueError for another shape than that of the published models."""
    for name, (only, silent) in VALUES.items():
        value = theirs.get(name)
        value = silent if value is None else value
        terms = value.lower().split("|") if isinstance(value, str) else value
        same = value == only
        if name == "pos_att_type":  # in any order, as a string or as a list
            same = isinstance(terms, list) and {str(term).strip() for term in terms} == BOTH
        if not same:
            raise ValueError(f"{name} = {value!r}: deberta-v2 is read with {only!r} only")
    hidden, heads = theirs.get("hidden_size", HIDDEN), theirs.get("num_attention_heads", HEADS)
    width = theirs.get("attention_head_size")
    if isinstance(width, int) and isinstance(heads, int) and width * heads != hidden:
        raise ValueError(
            f"attention_head_size = {width}: deberta-v2 is read with hidden_size / "
            "num_attention_heads only"
        )
    for name in ("embedding_size", "pooler_hidden_size"):
        value = theirs.get(name)
        if value is not None and value != hidden:
            raise ValueError(f"{name} = {value!r}: deberta-v2 is read with hidden_size only")
    buckets, farthest = theirs.get("position_buckets", -1), theirs.get("max_relative_positions", -1)
    if not isinstance(buckets, int) or buckets < 1:
        raise ValueError(f"position_buckets = {buckets!r}: deberta-v2 is read with buckets only")
    if not isinstance(farthest, int):
        raise ValueError(f"max_relative_positions = {farthest!r}: is no number of tokens")
    tokens = theirs.get("conv_kernel_size", 0)
    convolution = {"tokens": tokens, "activation": theirs.get("conv_act", "tanh")}
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
        raise ConfigError('model.positions: every deberta-v2 model has kind = "disentangled"')
    written = {name: only for name, (only, _) in VALUES.items()}
    written |= {
        "position_buckets": positions.side_buckets,
        "max_relative_positions": positions.farthest or -1,
        "legacy": False,  # the head of masked words is that of microsoft/DeBERTa, by its names
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
_POOLED = {**module("pooler.transform.dense", "pooler.dense"), **module("out", "classifier")}
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
        "mlm": {
            **module("dense", f"{_MASKED}dense"),
            **module("norm", f"{_MASKED}LayerNorm"),
            "bias": f"{_MASKED}bias",
        },
        "classify": _POOLED,
        "choose": _POOLED,
        "answer": module("out", "qa_outputs"),
        "tag": module("out", "classifier"),
        "crf": {**module("out", "classifier"), **CRF},
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
        # of pretraining: absolute positions that its decoder adds, and the head of replaced words
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
