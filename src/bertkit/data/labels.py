"""What labels say as they are written: names, several of them, or numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable

from bertkit.console import say
from bertkit.errors import DataError

SEPARATORS = re.compile(r"[,;/\s]+")
"""Separators of labels in other libraries."""

WHOLE = re.compile(r"([+-]?\d+)(?:\.0*)?")
"""A whole number; pandas writes 1 as 1.0 where its column lacked a number."""


def several(label: str, where: str) -> list[str]:
    """The names in a JSON list, or between vertical bars.

    Raises: DataError for a malformed list.
    """
    if not label.startswith("["):
        return [part.strip() for part in label.split("|") if part.strip()]
    try:
        names = json.loads(label)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str | int) for n in names):
        raise DataError(f'{where}: {label!r} is no list of labels; write ["a", "b"]')
    return [str(name) for name in names]


def listed(names: Iterable[str]) -> str:
    """Join names with commas; a name that contains a comma is quoted."""
    return ", ".join(repr(name) if "," in name else name for name in names)


def check_separators(written: Collection[str], names: Collection[str]) -> None:
    """Warn if several labels of a text were probably read as one label.

    Args:
        written: Labels as the rows contain them.
        names: The labels that `several` found in them.
    """
    expected = 'separate labels with |, as in a|b, or write a JSON list, as in ["a", "b"]'
    for name in sorted(names):
        parts = [part.strip() for part in SEPARATORS.split(name) if part.strip()]
        if len(parts) > 1 and all(part in names for part in parts):
            each = " and ".join(map(repr, parts))
            say(f"warning: label {name!r} is one label, but {each} are labels, too; {expected}")
            return
    if not any(label.startswith("[") or "|" in label for label in written):
        say(f"warning: no row has several labels; {expected}")


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


def without_fractions(labels: Collection[str]) -> set[str]:
    """The same labels; 1.0 as 1 where all are whole numbers, or where 1 is one of them, too."""
    whole = [WHOLE.fullmatch(label) for label in labels]
    return {
        number[1] if number and (all(whole) or number[1] in labels) else label
        for number, label in zip(whole, labels, strict=True)
    }


def known_as(label: str, known: Collection[str]) -> str:
    """What a label is called among those that are known: 1.0 and 1 are the same, and true and True,
    which files and programs write differently.
    """
    whole = None if label in known else WHOLE.fullmatch(label)
    forms = (whole[1], f"{whole[1]}.0") if whole else ()
    if label in ("true", "false", "True", "False"):
        forms = (label, label.swapcase()[0] + label[1:])
    return next((form for form in forms if form in known), label)
