"""Model families: each is how to read and write its `config.json`, and a table of weight names."""

from __future__ import annotations

from collections.abc import Mapping

from bertkit.families.bert import BERT
from bertkit.families.family import Family

FAMILIES: Mapping[str, Family] = {BERT.name: BERT}
"""By the `model_type` of their `config.json`."""

__all__ = ["BERT", "FAMILIES", "Family"]
