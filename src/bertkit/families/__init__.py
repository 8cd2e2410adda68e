"""Model families, which define how the files of an architecture's checkpoints are converted."""

from __future__ import annotations

from collections.abc import Mapping

from bertkit.families.albert import ALBERT as ALBERT
from bertkit.families.bert import BERT as BERT
from bertkit.families.bert import ERNIE as ERNIE
from bertkit.families.deberta import DEBERTA as DEBERTA
from bertkit.families.distilbert import DISTILBERT as DISTILBERT
from bertkit.families.electra import ELECTRA as ELECTRA
from bertkit.families.family import Family as Family
from bertkit.families.gte import GTE as GTE
from bertkit.families.modernbert import MODERNBERT as MODERNBERT
from bertkit.families.mpnet import MPNET as MPNET
from bertkit.families.nomic import NOMIC_BERT as NOMIC_BERT
from bertkit.families.roberta import CAMEMBERT as CAMEMBERT
from bertkit.families.roberta import DATA2VEC_TEXT as DATA2VEC_TEXT
from bertkit.families.roberta import ROBERTA as ROBERTA
from bertkit.families.roberta import XLM_ROBERTA as XLM_ROBERTA
from bertkit.registry import Registry

FAMILIES: Mapping[str, Family] = Registry(
    "families",
    {
        "bert": "bertkit.families.bert:BERT",
        "ernie": "bertkit.families.bert:ERNIE",
        "roberta": "bertkit.families.roberta:ROBERTA",
        "xlm-roberta": "bertkit.families.roberta:XLM_ROBERTA",
        "camembert": "bertkit.families.roberta:CAMEMBERT",
        "data2vec-text": "bertkit.families.roberta:DATA2VEC_TEXT",
        "albert": "bertkit.families.albert:ALBERT",
        "distilbert": "bertkit.families.distilbert:DISTILBERT",
        "electra": "bertkit.families.electra:ELECTRA",
        "modernbert": "bertkit.families.modernbert:MODERNBERT",
        "mpnet": "bertkit.families.mpnet:MPNET",
        "deberta-v2": "bertkit.families.deberta:DEBERTA",
        "nomic_bert": "bertkit.families.nomic:NOMIC_BERT",
        "gte": "bertkit.families.gte:GTE",
    },
)
"""`model_type` in `config.json` -> the family."""

OLDER_NAMES: Mapping[str, str] = {"new": "gte"}
"""Older `model_type` -> current `model_type`. Checkpoints have an older one if they were published
before transformers supported the architecture.
"""


def family_of(model_type: object) -> Family | None:
    """Return the family of a current or older `model_type`, or None if it is not supported."""
    if not isinstance(model_type, str):
        return None
    return FAMILIES.get(OLDER_NAMES.get(model_type, model_type))


UNSUPPORTED_MODELS: Mapping[str, str] = {
    name: reason
    for reason, names in {
        "relative positions": ("xlnet", "funnel"),
        "the positions of DeBERTa version 1, unlike 2 and 3 (deberta-v2)": ("deberta",),
        "an adapter per language in every layer": ("xmod",),
        "different rotary positions": ("esm", "eurobert", "jina_embeddings_v3", "roformer"),
        "a different attention mechanism": (
            "big_bird",
            "convbert",
            "fnet",
            "led",
            "longformer",
            "luke",
            "nystromformer",
            "reformer",
        ),
        "different layers": (
            "flaubert",
            "ibert",
            "megatron-bert",
            "mobilebert",
            "rembert",
            "roberta-prelayernorm",
            "squeezebert",
            "xlm",
            "xlm-roberta-xl",
        ),
        "layout embeddings": ("layoutlm", "lilt", "markuplm"),
        "characters instead of tokens": ("canine",),
        "a decoder": ("bert-generation", "mbart"),
        "a different decoder": ("gemma", "gemma2", "gemma3_text", "mistral", "qwen2", "qwen3"),
    }.items()
    for name in names
}
"""`model_type` of unsupported architectures -> the feature that bertkit does not support."""
