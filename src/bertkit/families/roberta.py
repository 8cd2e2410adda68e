"""RoBERTa, and what is shaped like it: XLM-R, CamemBERT. Liu et al. 2019."""

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


def _family(name: str, architecture: str, vocab: int) -> Family:
    return Family(
        name=name,
        vocab=vocab,
        settings={**BERT_SETTINGS, "head_dropout": "classifier_dropout"},
        fixed={"dense_dropout": "head_dropout", "choose_dropout": "dropout"},
        defaults={"pad": 1},
        must_be={"position_embedding_type": "absolute", **AN_ENCODER},
        positions_after_pad=True,
        body={**embeddings("roberta.embeddings."), **bert_layers("roberta.encoder.layer.{}.")},
        prefix="roberta.",
        heads={
            "mlm": {
                **module("dense", "lm_head.dense"),
                **module("norm", "lm_head.layer_norm"),
                "bias": "lm_head.bias",
            },
            "pooler": module("transform.dense", "roberta.pooler.dense"),
            "classify": {
                **module("pooler.transform.dense", "classifier.dense"),
                **module("out", "classifier.out_proj"),
            },
            "choose": {
                **module("pooler.transform.dense", "roberta.pooler.dense"),
                **module("out", "classifier"),
            },
            "answer": module("out", "qa_outputs"),
            "tag": module("out", "classifier"),
            "crf": {**module("out", "classifier"), **CRF},
        },
        derived={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        ignored=("roberta.embeddings.position_ids",),
        architectures=architectures(architecture, (frozenset({"pooler"}), f"{architecture}Model")),
    )


ROBERTA = _family("roberta", "Roberta", 50_265)
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta", 250_002)
CAMEMBERT = _family("camembert", "Camembert", 32_005)
