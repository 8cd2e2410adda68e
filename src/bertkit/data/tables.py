"""Reader of labeled files: .tsv, .txt, .csv, and .jsonl, also .gz, and stdin."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from bertkit.data.paths import suffix
from bertkit.data.readers import STDIN, json_object, read_text
from bertkit.data.row_errors import each_of
from bertkit.errors import DataError, did_you_mean

TABLES = (".tsv", ".csv", ".jsonl")

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
"""Separator of columns by file type."""

NAMES = {",": "comma", ";": "semicolon", "\t": "tab"}
"""Names of separators, for messages."""

WORDS = ("tab", "space")
"""Separators that are written as words."""


@dataclass
class LabeledTable:
    """Rows of a labeled file, every value as text.

    Attributes:
        file: The file.
        columns: Names of the columns.
        rows: One mapping from column to value per row.
        lines: Line where each row begins, from 1.
        said: Summary of the columns, for the user to check.
        header: Whether the first line of the file is a header line.
        separator: Separator of the columns; empty in JSON Lines.
    """

    file: Path
    columns: list[str]
    rows: list[dict[str, str]]
    lines: list[int]
    said: str
    header: bool = False
    separator: str = ""


def rows(
    path: Path,
    *,
    header: bool = True,
    separator: str | None = None,
    named: Collection[str] = (),
) -> LabeledTable:
    """Read the rows of a .tsv or .txt (without quoting), .csv (quoted), or .jsonl file, also .gz.

    JSON values that are not text are written as JSON.

    Args:
        path: The file. Stdin is JSON Lines if it begins with `{`, tab-separated if its first
            line contains a tab, and CSV otherwise.
        header: Whether the first line contains the names of the columns. If false, the columns are
            called "1", "2", and so on.
        separator: Character that separates columns, `tab`, or `space` to split a line after its
            first word. Default: a comma in .csv, otherwise a tab. If set, the file may have any
            suffix.
        named: Columns that are used. If set, rows may have more or fewer other columns.

    Returns:
        The rows.

    Raises:
        DataError: If the file cannot be read, or a row has a different number of columns.
    """
    path = Path(path)
    kind = suffix(path)
    if kind not in (*TABLES, ".txt") and separator is None and path != STDIN and path.is_file():
        raise DataError(
            f"{path}: rows are read from .tsv, .csv, .jsonl and .txt files, also .gz; for a text "
            "file with another suffix, set --separator"
        )
    if separator is not None and separator not in WORDS and len(separator) != 1:
        raise DataError(f"separator: {separator!r}; use one character, tab, or space")
    text = read_text(path)
    if path == STDIN:
        kind = _kind_of(text)
    if kind == ".jsonl":
        return _json_table(path, text)
    if separator is None:
        separator = SEPARATORS[kind]
        if header:
            _check_separator(path, text, separator)
    separator = "\t" if separator == "tab" else separator
    if kind == ".csv" and separator != "space":
        cells = list(_csv_cells(path, text, separator))
    else:
        cells = list(_tsv_cells(text, separator))
    table = _table(path, cells, header, named)
    table.separator = separator
    return table


def _kind_of(text: str) -> str:
    """Return the file type of stdin, inferred from its first line."""
    first = _first_line(text)
    return ".jsonl" if first.startswith("{") else ".tsv" if "\t" in first else ".csv"


def _first_line(text: str) -> str:
    return text.lstrip("\n\r ").partition("\n")[0]


def _check_separator(path: Path, text: str, separator: str) -> None:
    """Raise a DataError if only other separators than the expected one are in the header line."""
    first = _first_line(text)
    if separator in first:
        return
    for other in NAMES:
        if other in first:
            written = "tab" if other == "\t" else repr(other)
            raise DataError(
                f"{path}: the header line contains no {NAMES[separator]} but a {NAMES[other]}; "
                f"set --separator {written} if it separates the columns"
            )


def _tsv_cells(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip(None if separator == "space" else " "):  # a row of empty cells is a row
            yield number, line.split(None, 1) if separator == "space" else line.split(separator)


def _csv_cells(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a cell may hold a document
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{line}: not CSV ({error}); check the quotes here") from None


def _table(
    path: Path, cells: list[tuple[int, list[str]]], header: bool, named: Collection[str]
) -> LabeledTable:
    if header:
        columns, said = _names(path, cells)
        cells = cells[1:]
    else:
        columns = [str(i + 1) for i in range(len(cells[0][1]))]
        said = f"{path}: columns {', '.join(columns)} (no header line)"
    needed = max((columns.index(name) + 1 for name in named if name in columns), default=None)

    def record(cell: tuple[int, list[str]]) -> dict[str, str]:
        line, row = cell
        if len(row) != len(columns) and (needed is None or len(row) < needed):
            raise DataError(
                f"{path}:{line}: expected {len(columns)} columns as in the first line, "
                f"found {len(row)}; fix this line"
            )
        return dict(zip_longest(columns, row[: len(columns)], fillvalue=""))

    return LabeledTable(
        path, columns, each_of(record, cells), [line for line, _ in cells], said, header
    )


def _names(path: Path, cells: Sequence[tuple[int, list[str]]]) -> tuple[list[str], str]:
    """Return the columns of the header line and a summary of them."""
    first = cells[0][1]
    columns = [name.strip() for name in first]
    said = f"{path}: columns {', '.join(columns)}"
    if len(set(columns)) < len(columns):
        raise DataError(
            f"{path}:1: two columns have the same name; rename one, or set --no-header if the "
            "first line is data"
        )
    if len(cells) == 1:
        raise DataError(f"{path}: only a header line, no rows; set --no-header if it is data")
    if again := [line for line, row in cells[1:] if row == first]:
        said += f"; warning: line {again[0]:,} repeats the header line; remove it"
    return columns, said


def _json_table(path: Path, text: str) -> LabeledTable:
    lines = [(number, raw) for number, raw in enumerate(text.split("\n"), 1) if raw.strip()]
    columns: list[str] = []

    def record(line: tuple[int, str]) -> dict[str, str]:
        nonlocal columns
        number, raw = line
        row = json_object(raw.encode(), f"{path}:{number}")
        columns = columns or list(row)
        missing = [name for name in columns if name not in row]
        if missing:
            raise DataError(
                f"{path}:{number}: no field {missing[0]!r}, which the first row has; "
                f"{did_you_mean(missing[0], row)}"
            )
        return {name: _as_text(row[name]) for name in columns}

    records = each_of(record, lines)
    numbers = [number for number, _ in lines]
    return LabeledTable(path, columns, records, numbers, f"{path}: columns {', '.join(columns)}")


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else json.dumps(value, ensure_ascii=False)
