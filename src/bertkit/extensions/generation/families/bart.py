"""BART: an encoder-decoder model, pretrained by denoising. Lewis et al. 2020."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertkit.extensions.generation.families.marian import MARIAN, NEUTRAL, layers, settings
from bertkit.families.family import module, pooled

_STACK: dict[str, Any] = {"token_types": 0, "norm.eps": 1e-5}
_DEFAULTS: dict[str, Any] = {"max_positions": 1024, "pad_id": 1, "attention_dropout": 0.0}
_DEFAULTS |= {"hidden": 1024, "heads": 16, "intermediate": 4096}


def _embedding(side: str) -> dict[str, str | tuple[str, ...]]:
    """Map bertkit's names of the encoder's or decoder's embedding weights to the names in BART."""
    return {
        f"{side}.embedding.positions.weight": f"model.{side}.embed_positions.weight",
        **module(f"{side}.embedding.norm", f"model.{side}.layernorm_embedding"),
    }


assert MARIAN.decoder is not None
BART = replace(
    MARIAN,
    name="bart",
    vocab=50_265,
    fixed=_STACK,
    defaults=_DEFAULTS,
    neutral=NEUTRAL,
    special=None,
    roles=("pad", "unk", "bos", "eos"),
    written_roles=("pad", "bos", "eos"),
    body={
        "encoder.embedding.tokens.weight": "model.shared.weight",
        "decoder.embedding.tokens.weight": "model.shared.weight",
        **_embedding("encoder"),
        **_embedding("decoder"),
        **layers("encoder"),
        **layers("decoder"),
    },
    unused_positions=2,
    sinusoids=(),
    heads={
        **MARIAN.heads,
        "classify": pooled("classification_head.dense", "classification_head.out_proj"),
        "answer": module("out", "qa_outputs"),
    },
    architectures={
        frozenset(): "BartModel",
        frozenset({"lm"}): "BartForConditionalGeneration",
        frozenset({"classify"}): "BartForSequenceClassification",
        frozenset({"answer"}): "BartForQuestionAnswering",
    },
    decoder=replace(
        MARIAN.decoder,
        name="bart",
        settings={**settings("decoder"), "head.dropout": "classifier_dropout"},
        fixed={
            **_STACK,
            "attention.causal": True,
            "attention.cross": True,
            "head.lm_bias": True,
            "head.pooling": "last",
            "head.dense_dropout": "head.dropout",
        },
        defaults={**_DEFAULTS, "head.dropout": 0.0},
    ),
    start="eos",
    zero_pad=False,
)
