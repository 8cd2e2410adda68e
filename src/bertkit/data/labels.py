"""Parsing of labels: names, lists of names, or numbers."""

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
"""A whole number. pandas writes 1 as 1.0 if its column has missing values."""


def parse_labels(label: str, location: str) -> list[str]:
    """Return the names in a JSON list, or between vertical bars.

    Args:
        label: The label as written.
        location: File and line, for messages.

    Raises:
        DataError: If the list is malformed.
    """
    if not label.startswith("["):
        return [part.strip() for part in label.split("|") if part.strip()]
    try:
        names = json.loads(label)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(n, str | int) for n in names):
        raise DataError(f'{location}: expected a list such as ["a", "b"], got {label!r}')
    return [str(name) for name in names]


def join_labels(names: Iterable[str]) -> str:
    """Join names with commas; a name that contains a comma is quoted."""
    return ", ".join(repr(name) if "," in name else name for name in names)


def check_separators(written: Collection[str], names: Collection[str]) -> None:
    """Warn if several labels of a text were probably read as one label.

    Args:
        written: Labels as the rows contain them.
        names: The labels that `several` found in them.
    """
    remedy = 'separate labels with |, as in a|b, or write a JSON list, as in ["a", "b"]'
    for name in sorted(names):
        parts = [part.strip() for part in SEPARATORS.split(name) if part.strip()]
        if len(parts) > 1 and all(part in names for part in parts):
            also = " and ".join(map(repr, parts))
            say(f"warning: label {name!r} is one label, but {also} are labels, too; {remedy}")
            return
    if not any(label.startswith("[") or "|" in label for label in written):
        say(f"warning: no row has several labels; {remedy}")


def number(label: str) -> float | None:
    """Return a label as a number, or None if it is not a finite number."""
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def label_sort_key(label: str) -> tuple[float, str]:
    """Return a sort key of labels: numbers by value, then other labels alphabetically."""
    value = number(label)
    return (math.inf if value is None else value, label)


def without_fractions(labels: Collection[str]) -> set[str]:
    """Return the labels with whole numbers written as integers, such as 1 instead of 1.0.

    A label is only changed if all labels are whole numbers, or if the integer is also a label.
    """
    whole = [WHOLE.fullmatch(label) for label in labels]
    return {
        number[1] if number and (all(whole) or number[1] in labels) else label
        for number, label in zip(whole, labels, strict=True)
    }


def canonical_label(label: str, known: Collection[str]) -> str:
    """Return the spelling of a label in `known`, or the label itself.

    Files and libraries write some labels differently: 1.0 and 1 are equal, and true and True.
    """
    whole = None if label in known else WHOLE.fullmatch(label)
    forms = (whole[1], f"{whole[1]}.0") if whole else ()
    if label in ("true", "false", "True", "False"):
        forms = (label, label.swapcase()[0] + label[1:])
    return next((form for form in forms if form in known), label)
