"""Functions that parse labels, which can be names, lists of names, or numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable

from bertkit.console import say
from bertkit.errors import DataError

SEPARATORS = re.compile(r"""[,;/|\s\[\]"']+""")
"""Characters that separate labels in lists of other libraries, or of tasks with several labels."""

WHOLE = re.compile(r"([+-]?\d+)(?:\.0*)?")
"""Pattern of a whole number. pandas writes 1 as 1.0 if the column has missing values."""


def parse_labels(label: str, location: str) -> list[str]:
    """Split a label into names. The label is a JSON list, or its names are separated by `|`.

    Args:
        label: The label as written in the row.
        location: File and line, for error messages.

    Raises:
        DataError: If the JSON list is malformed.
    """
    if not label.startswith("["):
        return [part.strip() for part in label.split("|") if part.strip()]
    try:
        names = json.loads(label)
    except (ValueError, RecursionError):
        names = None
    is_list = isinstance(names, list) and all(isinstance(name, str | int) for name in names)
    if not is_list or not all(parsed := [str(name).strip() for name in names]):
        raise DataError(f'{location}: expected a list such as ["a", "b"], got {label!r}')
    return parsed


def join_labels(names: Iterable[str]) -> str:
    """Join names with commas. A name that contains a comma is quoted."""
    return ", ".join(repr(name) if "," in name else name for name in names)


def check_separators(written: Collection[str], names: Collection[str], *, several: bool) -> None:
    """Warn if a list of labels was probably read as one label.

    Args:
        written: Labels as written in the rows.
        names: All labels that were found in them.
        several: Whether a text can have several labels.
    """
    remedy = 'separate labels with |, as in a|b, or write a JSON list, as in ["a", "b"]'
    if not several:
        remedy = f"if a text can have several labels, set multi_label, and {remedy}"
    for name in sorted(names):
        parts = [part.strip() for part in SEPARATORS.split(name) if part.strip()]
        if len(parts) > 1 and all(part in names for part in parts):
            also = " and ".join(map(repr, parts))
            say(f"warning: {name!r} was read as one label, but {also} are also labels; {remedy}")
            return
    if several and not any(label.startswith("[") or "|" in label for label in written):
        say(f"warning: no row has several labels; {remedy}")


def number(label: str) -> float | None:
    """Convert a label to a number, or return None if it is not a finite number."""
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def label_sort_key(label: str) -> tuple[float, str]:
    """Return the key by which labels are sorted: numbers by value, then other labels by name."""
    value = number(label)
    return (math.inf if value is None else value, label)


def without_fractions(labels: Collection[str]) -> set[str]:
    """Write labels that are whole numbers as integers, such as 1 instead of 1.0.

    A label is changed only if all labels are whole numbers, or if the integer is also a label.
    """
    whole = [WHOLE.fullmatch(label) for label in labels]
    return {
        number[1] if number and (all(whole) or number[1] in labels) else label
        for number, label in zip(whole, labels, strict=True)
    }


def canonical_label(label: str, known: Collection[str]) -> str:
    """Return the spelling that a label has in `known`, or the label itself if it is unknown.

    Files and libraries spell some labels differently. 1.0 and 1 are treated as the same label, and
    so are true and True.
    """
    whole = None if label in known else WHOLE.fullmatch(label)
    forms = (whole[1], f"{whole[1]}.0") if whole else ()
    if label in ("true", "false", "True", "False"):
        forms = (label, label.swapcase()[0] + label[1:])
    return next((form for form in forms if form in known), label)
