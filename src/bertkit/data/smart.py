"""Collections in the form of the SMART system, as Cranfield and CISI are published.

A document or query begins with `.I` and its number; `.T`, `.A`, `.B` and `.W` begin its title,
authors, source and text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bertkit.data.readers import numbered, read_text
from bertkit.errors import DataError

FIELDS = {"T": "title", "A": "author", "B": "source", "W": "text"}

_BEGIN = re.compile(r"\.I\s+(\d+)\s*")
_FIELD = re.compile(r"\.([A-Z])\s*")


def is_smart(path: Path) -> bool:
    """Whether the first line of a file begins a SMART collection."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _BEGIN.fullmatch(file.readline(100).decode("utf-8", "replace").strip()) is not None


def read_smart(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The line and the fields of each document or query, `id` (its number) among them.

    Raises: DataError naming file and line.
    """
    lines: dict[str, list[str]] = {}
    line, field = 0, ""
    for number, raw in numbered(path):
        if begin := _BEGIN.fullmatch(raw):
            if lines:
                yield line, _joined(lines)
            line, field, lines = number, "", {"id": [begin[1]]}
        elif mark := _FIELD.fullmatch(raw):
            field = FIELDS.get(mark[1], "")  # others, such as CISI's .X, are no text
        elif field:
            lines.setdefault(field, []).append(raw.strip())
    if lines:
        yield line, _joined(lines)


def _joined(lines: dict[str, list[str]]) -> dict[str, str]:
    return {"id": "", "title": "", "author": "", "source": "", "text": ""} | {
        name: " ".join(text) for name, text in lines.items()
    }


def read_smart_queries(path: Path) -> dict[str, str]:
    """Queries by their index from 1, which judgments use; Cranfield's `.I` is another number.

    Raises: DataError naming file and line.
    """
    queries = {}
    for place, (line, query) in enumerate(read_smart(path), 1):
        if not query["text"]:
            raise DataError(f"{path}:{line}: the query is empty; remove it")
        queries[str(place)] = query["text"]
    return queries


_CISI = re.compile(r"\s*(\d+)\s+(\d+)\s+0\s+0\.0+\s*")


def read_smart_judgments(path: Path) -> dict[str, dict[str, int]] | None:
    """CISI's pairs of a query and a document that answers it; None for another form."""
    judgments: dict[str, dict[str, int]] = {}
    for line in read_text(path).split("\n"):
        if not line.strip():
            continue
        if (row := _CISI.fullmatch(line)) is None:
            return None
        judgments.setdefault(row[1], {})[row[2]] = 1
    return judgments
