"""BERT and ERNIE, which have the same architecture if ERNIE's task embeddings are not used.

Sources: Devlin et al. 2019, Sun et al. 2019. The names of settings and weights are taken from
Hugging Face checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.families.family import (
    BERT_SETTINGS,
    TOKEN_HEADS,
    Family,
    architectures,
    bert_layers,
    embeddings,
    masked_lm,
    module,
)
from bertkit.families.keys import ENCODER


def _family(
    name: str,
    architecture: str,
    *,
    neutral: Mapping[str, tuple[Any, ...]] = {},
    irrelevant: Mapping[str, str] = {},
) -> Family:
    pooler = module("pooler.transform.dense", f"{name}.pooler.dense")
    pair = {**pooler, **module("out", "cls.seq_relationship")}
    classifier = {**pooler, **module("out", "classifier")}
    return Family(
        name=name,
        settings={**BERT_SETTINGS, "head.dropout": "classifier_dropout"},
        neutral={"position_embedding_type": ("absolute",), **ENCODER, **neutral},
        irrelevant=irrelevant,
        body={**embeddings(f"{name}.embeddings."), **bert_layers(f"{name}.encoder.layer.{{}}.")},
        prefix=f"{name}.",
        heads={
            "mlm": masked_lm(
                "cls.predictions.transform.dense",
                "cls.predictions.transform.LayerNorm",
                "cls.predictions.bias",
            ),
            "nsp": pair,
            "sop": pair,
            "pooler": module("transform.dense", f"{name}.pooler.dense"),
            "classify": classifier,
            "choose": classifier,
            **TOKEN_HEADS,
        },
        derived={
            "cls.predictions.decoder.weight": f"{name}.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        ignored=(f"{name}.embeddings.position_ids",),
        architectures=architectures(
            architecture,
            (frozenset({"pooler"}), f"{architecture}Model"),
            (frozenset({"nsp"}), f"{architecture}ForNextSentencePrediction"),
            (frozenset({"mlm", "nsp"}), f"{architecture}ForPreTraining"),
            (frozenset({"mlm", "sop"}), f"{architecture}ForPreTraining"),
        ),
    )


BERT = _family("bert", "Bert")
ERNIE = _family(
    "ernie",
    "Ernie",
    neutral={"use_task_id": (False,)},
    irrelevant={"task_type_vocab_size": "size of the task embedding, which is not supported"},
)
