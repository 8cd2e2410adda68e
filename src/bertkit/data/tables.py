"""Labelled files as rows.

What is read: `.tsv`, `.csv` and `.jsonl`, each also as `.gz`, in UTF-8. Whatever is wrong is a
DataError that names file and line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertkit.data.readers import json_object, read_text, suffix
from bertkit.errors import DataError, did_you_mean

TABLES = (".tsv", ".csv", ".jsonl")

COLUMN_NAMES = frozenset(
    {"text", "text_a", "text_b", "sentence", "sentence1", "sentence2", "sentence_a", "sentence_b"}
    | {"question", "answer", "context", "premise", "hypothesis", "query", "document", "passage"}
    | {"#1 string", "#2 string", "qtext", "atext", "title", "review", "comment", "word", "token"}
    | {"anchor", "positive", "negative", "pair"}
    | {"label", "labels", "class", "category", "target", "score", "similarity", "quality", "tag"}
    | {"gold_label", "entailment_label", "relatedness_score", "id", "idx", "index", "pair_id"}
)
"""Names by which a first line is known as a header, in small letters."""


@dataclass(frozen=True)
class Table:
    """The rows of a labelled file, every value as text.

    Shapes: `rows` and `lines` are equally long; lines[i] is where rows[i] begins, from 1.
    `said` tells in a sentence how the columns were named, for the user to check.
    """

    file: Path
    columns: list[str]
    rows: list[dict[str, str]]
    lines: list[int]
    said: str


def rows(path: Path, *, header: bool | None = None) -> Table:
    """Read `.tsv` (without quoting), `.csv` (quoted) or `.jsonl`; each also as `.gz`.

    `header` None guesses whether the first line names the columns; where it does not they are
    called "1", "2" and so on. JSON values that are not text are written as in JSON.
    Raises: DataError naming file and line, for ragged rows with the expected and found counts.
    """
    path = Path(path)
    kind = suffix(path)
    if kind not in TABLES and path.exists():
        raise DataError(f"{path}: rows are read from .tsv, .csv and .jsonl files, also .gz")
    text = read_text(path)
    if kind == ".jsonl":
        return _json_table(path, text)
    cells = list(_csv_cells(path, text) if kind == ".csv" else _tsv_cells(text))
    return _table(path, cells, header)


def _tsv_cells(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r").split("\t")


def _csv_cells(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a cell may hold a document
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{line}: not CSV ({error}); check the quotes here") from None


def _table(path: Path, cells: list[tuple[int, list[str]]], header: bool | None) -> Table:
    first = cells[0][1]
    named = _looks_like_header(first) if header is None else header
    if named:
        columns = [name.strip() for name in first]
        said = f"{path}: columns {', '.join(columns)} (named by the first line)"
        cells = cells[1:]
        if len(set(columns)) < len(columns):
            raise DataError(f"{path}:1: two columns have the same name; rename one")
        if not cells:
            raise DataError(f"{path}: only a header line, no rows")
    else:
        columns = [str(i + 1) for i in range(len(first))]
        said = f"{path}: no header line; columns are called {', '.join(columns)}"
    found = []
    for line, row in cells:
        if len(row) != len(columns):
            raise DataError(
                f"{path}:{line}: expected {len(columns)} columns as in the first line, "
                f"found {len(row)}; mend this line"
            )
        found.append(dict(zip(columns, row, strict=True)))
    return Table(path, columns, found, [line for line, _ in cells], said)


def _looks_like_header(cells: list[str]) -> bool:
    """At least one usual name, and nothing that reads like a sentence."""
    names = [cell.strip().lower() for cell in cells]
    plain = all(0 < len(n) <= 40 and not n.endswith((".", "?", "!")) for n in names)
    return plain and len(set(names)) == len(names) and not COLUMN_NAMES.isdisjoint(names)


def _json_table(path: Path, text: str) -> Table:
    found, lines = [], []
    columns: list[str] = []
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        row = json_object(raw.encode(), f"{path}:{number}")
        columns = columns or list(row)
        missing = [name for name in columns if name not in row]
        if missing:
            raise DataError(
                f"{path}:{number}: no field {missing[0]!r}, which the first row has; "
                f"{did_you_mean(missing[0], row)}"
            )
        found.append({name: _as_text(row[name]) for name in columns})
        lines.append(number)
    return Table(path, columns, found, lines, f"{path}: columns {', '.join(columns)}")


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
