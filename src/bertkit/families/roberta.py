"""RoBERTa, and what is shaped like it: XLM-R, CamemBERT, data2vec of texts. Liu et al. 2019."""

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


def _family(name: str, architecture: str, vocab: int, prefix: str = "roberta.") -> Family:
    return Family(
        name=name,
        vocab=vocab,
        settings={**BERT_SETTINGS, "head_dropout": "classifier_dropout"},
        fixed={"dense_dropout": "head_dropout", "choose_dropout": "dropout"},
        defaults={"pad": 1},
        must_be={"position_embedding_type": "absolute", **AN_ENCODER},
        positions_after_pad=True,
        body={**embeddings(f"{prefix}embeddings."), **bert_layers(f"{prefix}encoder.layer.{{}}.")},
        prefix=prefix,
        heads={
            "mlm": {
                **module("dense", "lm_head.dense"),
                **module("norm", "lm_head.layer_norm"),
                "bias": "lm_head.bias",
            },
            "pooler": module("transform.dense", f"{prefix}pooler.dense"),
            "classify": {
                **module("pooler.transform.dense", "classifier.dense"),
                **module("out", "classifier.out_proj"),
            },
            "choose": {
                **module("pooler.transform.dense", f"{prefix}pooler.dense"),
                **module("out", "classifier"),
            },
            "answer": module("out", "qa_outputs"),
            "tag": module("out", "classifier"),
            "crf": {**module("out", "classifier"), **CRF},
        },
        derived={
            "lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        ignored=(f"{prefix}embeddings.position_ids",),
        architectures=architectures(architecture, (frozenset({"pooler"}), f"{architecture}Model")),
    )


ROBERTA = _family("roberta", "Roberta", 50_265)
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta", 250_002)
CAMEMBERT = _family("camembert", "Camembert", 32_005)
DATA2VEC_TEXT = _family("data2vec-text", "Data2VecText", 50_265, "data2vec_text.")
