"""Model families: each is how to read and write its `config.json`, and a table of weight names."""

from __future__ import annotations

from collections.abc import Mapping

from bertkit.families.albert import ALBERT
from bertkit.families.bert import BERT
from bertkit.families.distilbert import DISTILBERT
from bertkit.families.electra import ELECTRA
from bertkit.families.family import Family
from bertkit.families.modernbert import MODERNBERT
from bertkit.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, DISTILBERT, ELECTRA, MODERNBERT)
}
"""By the `model_type` of their `config.json`."""

__all__ = [
    "ALBERT",
    "BERT",
    "CAMEMBERT",
    "DISTILBERT",
    "ELECTRA",
    "FAMILIES",
    "MODERNBERT",
    "ROBERTA",
    "XLM_ROBERTA",
    "Family",
]
