"""ALBERT: small embeddings, and layers that share their weights. Lan et al. 2020.

Dropout is applied before both residual additions, as in google-research/albert. transformers
applies no dropout after the feed-forward network. The published models are fine-tuned without
dropout (0.0).
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
    embeddings,
    masked_lm,
    module,
)
from bertkit.families.keys import TOKEN_IDS
from bertkit.models.config import TransformerConfig


def _sharing(layers: int, groups: int, inner: int) -> tuple[int, ...]:
    """Return the index of the weights that each layer uses.

    Each group of `inner` layers is repeated before the next group runs, all groups equally often.
    """
    firsts = (layer * groups // layers * inner for layer in range(layers))
    return tuple(first + index for first in firsts for index in range(inner))


def _read(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    layers, groups, inner = (
        hf_config.get(name, default)
        for name, default in (
            ("num_hidden_layers", 12),
            ("num_hidden_groups", 1),
            ("inner_group_num", 1),
        )
    )
    if not all(isinstance(n, int) and 0 < n <= 30 for n in (layers, groups, inner)):
        raise ValueError(
            "num_hidden_layers, num_hidden_groups, and inner_group_num must be from 1 to 30, "
            f"got {layers!r}, {groups!r} and {inner!r}"
        )
    return {"layers": layers * inner, "layer_sharing": _sharing(layers, groups, inner)}


def _write(config: TransformerConfig) -> dict[str, Any]:
    weights = max(config.depths) + 1
    for inner in (n for n in range(1, weights + 1) if config.layers % n == weights % n == 0):
        layers, groups = config.layers // inner, weights // inner
        if groups <= layers and _sharing(layers, groups, inner) == config.depths:
            return {
                "num_hidden_layers": layers,
                "num_hidden_groups": groups,
                "inner_group_num": inner,
            }
    raise ConfigError(
        "model.layer_sharing for albert must repeat the groups of layers one after another, each "
        f"equally often, got {list(config.depths)}"
    )


def _layer(weights: int, config: TransformerConfig) -> str:
    group, inner = divmod(weights, _write(config)["inner_group_num"])
    return f"{group}.albert_layers.{inner}"


_KEYS = ("num_hidden_layers", "num_hidden_groups", "inner_group_num")
_LAYER = "albert.encoder.albert_layer_groups.{}."
_QKV = (f"{_LAYER}attention.{part}" for part in ("query", "key", "value"))
_POOLER = module("pooler.transform.dense", "albert.pooler")
_CLASSIFIER = {**_POOLER, **module("out", "classifier")}

ALBERT = Family(
    name="albert",
    vocab=30_000,
    settings={
        **{path: key for path, key in BERT_SETTINGS.items() if path != "layers"},
        "embedding": "embedding_size",
        "head.dropout": "classifier_dropout_prob",
    },
    fixed={"head.sop_dropout": "head.dropout"},
    special=Special(("layers", "layer_sharing"), _read, _write, _KEYS, _layer),
    defaults={
        "embedding": 128,
        "feedforward.activation": "gelu_tanh",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "head.dropout": 0.1,
    },
    token_ids=TOKEN_IDS,
    neutral={"position_embedding_type": ("absolute",)},
    body={
        **embeddings("albert.embeddings."),
        **module("encoder.embedding.widen", "albert.encoder.embedding_hidden_mapping_in"),
        **module("encoder.blocks.{}.attention.qkv", *_QKV),
        **module("encoder.blocks.{}.attention.out", f"{_LAYER}attention.dense"),
        **module("encoder.blocks.{}.attention_norm", f"{_LAYER}attention.LayerNorm"),
        **module("encoder.blocks.{}.feedforward.up", f"{_LAYER}ffn"),
        **module("encoder.blocks.{}.feedforward.down", f"{_LAYER}ffn_output"),
        **module("encoder.blocks.{}.feedforward_norm", f"{_LAYER}full_layer_layer_norm"),
    },
    prefix="albert.",
    heads={
        "mlm": masked_lm("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        "sop": {**_POOLER, **module("out", "sop_classifier.classifier")},
        "pooler": module("transform.dense", "albert.pooler"),
        "classify": _CLASSIFIER,
        "choose": _CLASSIFIER,
        **TOKEN_HEADS,
    },
    derived={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    ignored=("albert.embeddings.position_ids",),
    architectures=architectures(
        "Albert",
        (frozenset({"pooler"}), "AlbertModel"),
        (frozenset({"mlm", "sop"}), "AlbertForPreTraining"),
    ),
)
