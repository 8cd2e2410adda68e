"""Conversion of Python values to text and to JSON values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np

LARGEST_INTEGER = 2.0**53
"""Number up to which a float can represent all integers exactly."""


def text_of(value: Any) -> str:
    """Convert a value to the text that pandas writes to a .csv file, such as `True` or `1.0`.

    Lists are converted to JSON, and missing values to an empty string.

    Raises:
        TypeError: If the value cannot be converted to text or JSON.
    """
    if isinstance(value, str):
        return value
    if is_missing(value):
        return ""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value)
    plain = value if isinstance(value, float) else json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def json_value(value: Any) -> Any:
    """Convert a value to a JSON value.

    Arrays and sets become lists, floats that are whole numbers become integers, and missing values
    become None. Values of unknown types are returned unchanged.
    """
    if isinstance(value, str):
        return value
    if is_missing(value):
        return None
    if isinstance(value, np.ndarray):
        return [json_value(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return json_value(value.item())
    if isinstance(value, set | frozenset):
        return [json_value(item) for item in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_INTEGER:
        return int(value)  # Labels and offsets may be stored as floats.
    if isinstance(value, Enum):
        return json_value(value.value)
    if isinstance(value, date | time | timedelta | Decimal | UUID | PurePath):
        return str(value)
    return value


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, infinite, or missing in pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and not math.isfinite(value)
