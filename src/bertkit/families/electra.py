"""ELECTRA: an encoder that is pretrained to detect replaced tokens. Clark et al. 2020."""

from __future__ import annotations

from bertkit.families.family import (
    BERT_SETTINGS,
    TOKEN_HEADS,
    Family,
    architectures,
    bert_layers,
    embeddings,
    masked_lm,
    module,
    pooled,
)
from bertkit.families.keys import ENCODER

ELECTRA = Family(
    name="electra",
    settings={
        **BERT_SETTINGS,
        "embedding": "embedding_size",
        "head.dropout": "classifier_dropout",
        "head.choose_dropout": "summary_last_dropout",
    },
    fixed={
        "head.activation": "gelu",
        "head.dense_dropout": "head.dropout",
        "head.mlm_activation": "gelu",
    },
    defaults={
        "embedding": 128,
        "hidden": 256,
        "heads": 4,
        "intermediate": 1024,
        "head.choose_dropout": 0.1,
    },
    neutral={
        "position_embedding_type": ("absolute",),
        "summary_type": ("first",),
        "summary_use_proj": (True,),
        "summary_activation": ("gelu",),
        "summary_first_dropout": (None, 0.0),
        "summary_proj_to_labels": (None, False),
        **ENCODER,
    },
    body={
        **embeddings("electra.embeddings."),
        **module("encoder.embedding.widen", "electra.embeddings_project"),
        **bert_layers("electra.encoder.layer.{}."),
    },
    prefix="electra.",
    heads={
        "mlm": masked_lm(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head.bias",
        ),
        "rtd": {
            **module("dense", "discriminator_predictions.dense"),
            **module("out", "discriminator_predictions.dense_prediction"),
        },
        "classify": pooled("classifier.dense", "classifier.out_proj"),
        "choose": pooled("sequence_summary.summary", "classifier"),
        **TOKEN_HEADS,
    },
    derived={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    ignored=("electra.embeddings.position_ids",),
    architectures=architectures("Electra", (frozenset({"rtd"}), "ElectraForPreTraining")),
)
