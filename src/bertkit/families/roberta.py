"""RoBERTa (Liu et al. 2019) and models with the same architecture.

These are XLM-R, CamemBERT, and data2vec for text.
"""

from __future__ import annotations

from bertkit.families.family import (
    BERT_SETTINGS,
    Family,
    architectures,
    bert_layers,
    embeddings,
    roberta_derived,
    roberta_heads,
)
from bertkit.families.keys import ENCODER, TOKEN_IDS


def _family(name: str, architecture: str, vocab: int, prefix: str = "roberta.") -> Family:
    return Family(
        name=name,
        vocab=vocab,
        settings={**BERT_SETTINGS, "head.dropout": "classifier_dropout"},
        fixed={
            "head.dense_dropout": "head.dropout",
            "head.choose_dropout": "dropout",
            "head.mlm_activation": "gelu",
        },
        defaults={"pad_id": 1},
        token_ids=TOKEN_IDS,
        neutral={"position_embedding_type": ("absolute",), **ENCODER},
        positions_after_pad=True,
        body={**embeddings(f"{prefix}embeddings."), **bert_layers(f"{prefix}encoder.layer.{{}}.")},
        prefix=prefix,
        heads=roberta_heads(prefix),
        derived=roberta_derived(prefix),
        ignored=(f"{prefix}embeddings.position_ids",),
        architectures=architectures(architecture, (frozenset({"pooler"}), f"{architecture}Model")),
    )


ROBERTA = _family("roberta", "Roberta", 50_265)
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta", 250_002)
CAMEMBERT = _family("camembert", "Camembert", 32_005)
DATA2VEC_TEXT = _family("data2vec-text", "Data2VecText", 50_265, "data2vec_text.")
