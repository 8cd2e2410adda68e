"""What labels say as they are written: names, several of them, or numbers."""

from __future__ import annotations

import json
import math

from bertkit.errors import DataError


def several(label: str, where: str) -> list[str]:
    """The names in a JSON list, or between vertical bars.

    Raises: DataError for a malformed list.
    """
    if not label.startswith("["):
        return [part.strip() for part in label.split("|") if part.strip()]
    try:
        names = json.loads(label)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str | int) for n in names):
        raise DataError(f'{where}: {label!r} is no list of labels; write ["a", "b"]')
    return [str(name) for name in names]


def number(label: str) -> float | None:
    """None for what is no finite number."""
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def natural(label: str) -> tuple[float, str]:
    """The order of labels: numbers by value, then words by letters."""
    value = number(label)
    return (math.inf if value is None else value, label)
