"""Model families: each is how to read and write its `config.json`, and a table of weight names."""

from __future__ import annotations

from collections.abc import Mapping

from bertkit.families.albert import ALBERT
from bertkit.families.bart import BART
from bertkit.families.bert import BERT, ERNIE
from bertkit.families.deberta import DEBERTA
from bertkit.families.distilbert import DISTILBERT
from bertkit.families.electra import ELECTRA
from bertkit.families.family import Family
from bertkit.families.gpt2 import GPT2
from bertkit.families.gte import GTE
from bertkit.families.llama import LLAMA
from bertkit.families.lstm import LSTM, LSTM_LM
from bertkit.families.marian import MARIAN
from bertkit.families.modernbert import MODERNBERT
from bertkit.families.mpnet import MPNET
from bertkit.families.nomic import NOMIC_BERT
from bertkit.families.openai_gpt import OPENAI_GPT
from bertkit.families.roberta import CAMEMBERT, DATA2VEC_TEXT, ROBERTA, XLM_ROBERTA
from bertkit.families.t5 import T5

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        BERT,
        ERNIE,
        ROBERTA,
        XLM_ROBERTA,
        CAMEMBERT,
        DATA2VEC_TEXT,
        ALBERT,
        DISTILBERT,
        ELECTRA,
        MODERNBERT,
        MPNET,
        DEBERTA,
        NOMIC_BERT,
        GTE,
        OPENAI_GPT,
        GPT2,
        MARIAN,
        BART,
        T5,
        LLAMA,
        LSTM,
        LSTM_LM,
    )
}
"""By the `model_type` of their `config.json`."""

OLDER_NAMES: Mapping[str, str] = {"new": "gte"}
"""A `model_type` that folders had before transformers knew the architecture -> today's."""


def family_of(model_type: object) -> Family | None:
    """The family that a `config.json` names, by its name of today or an older one."""
    if not isinstance(model_type, str):
        return None
    return FAMILIES.get(OLDER_NAMES.get(model_type, model_type))


OTHERS: Mapping[str, str] = {
    name: reason
    for reason, names in {
        "relative positions": ("xlnet", "funnel"),
        "a vector for every distance, and matrices for them in each layer, which versions 2 and 3 "
        "(deberta-v2) have not": ("deberta",),
        "an adapter for each language in every layer": ("xmod",),
        "its own rotary positions": ("esm", "eurobert", "jina_embeddings_v3", "roformer"),
        "another kind of attention": (
            "big_bird",
            "convbert",
            "fnet",
            "led",
            "longformer",
            "luke",
            "nystromformer",
            "reformer",
        ),
        "layers of another shape": (
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
        "places on a page": ("layoutlm", "lilt", "markuplm"),
        "a decoder": ("bert-generation", "mbart"),
        "a decoder of another shape": (
            "gemma",
            "gemma2",
            "gemma3_text",
            "mistral",
            "qwen2",
            "qwen3",
        ),
    }.items()
    for name in names
}
"""Architectures that are none of these, and what they have."""

__all__ = [
    "ALBERT",
    "BART",
    "BERT",
    "CAMEMBERT",
    "DATA2VEC_TEXT",
    "DEBERTA",
    "DISTILBERT",
    "ELECTRA",
    "ERNIE",
    "FAMILIES",
    "GPT2",
    "GTE",
    "LLAMA",
    "LSTM",
    "LSTM_LM",
    "MARIAN",
    "MODERNBERT",
    "MPNET",
    "NOMIC_BERT",
    "OLDER_NAMES",
    "OTHERS",
    "ROBERTA",
    "T5",
    "XLM_ROBERTA",
    "Family",
    "family_of",
]
