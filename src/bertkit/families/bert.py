"""BERT. Devlin et al. 2019; names and settings as Hugging Face folders have them."""

from __future__ import annotations

from bertkit.families.family import (
    AN_ENCODER,
    BERT_SETTINGS,
    CRF,
    Family,
    architectures,
    bert_layers,
    embeddings,
    module,
)

_POOLER = module("pooler.transform.dense", "bert.pooler.dense")
_PAIR = {**_POOLER, **module("out", "cls.seq_relationship")}
_CLASSIFIER = {**_POOLER, **module("out", "classifier")}

BERT = Family(
    name="bert",
    settings={**BERT_SETTINGS, "head_dropout": "classifier_dropout"},
    must_be={"position_embedding_type": "absolute", **AN_ENCODER},
    body={**embeddings("bert.embeddings."), **bert_layers("bert.encoder.layer.{}.")},
    prefix="bert.",
    heads={
        "mlm": {
            **module("dense", "cls.predictions.transform.dense"),
            **module("norm", "cls.predictions.transform.LayerNorm"),
            "bias": "cls.predictions.bias",
        },
        "nsp": _PAIR,
        "sop": _PAIR,
        "pooler": module("transform.dense", "bert.pooler.dense"),
        "classify": _CLASSIFIER,
        "choose": _CLASSIFIER,
        "answer": module("out", "qa_outputs"),
        "tag": module("out", "classifier"),
        "crf": {**module("out", "classifier"), **CRF},
    },
    derived={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    ignored=("bert.embeddings.position_ids",),
    architectures=architectures(
        "Bert",
        (frozenset({"pooler"}), "BertModel"),
        (frozenset({"nsp"}), "BertForNextSentencePrediction"),
        (frozenset({"mlm", "nsp"}), "BertForPreTraining"),
        (frozenset({"mlm", "sop"}), "BertForPreTraining"),
    ),
)
