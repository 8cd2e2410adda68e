"""Labelled files as rows.

What is read: `.tsv` (also called `.txt`), `.csv` and `.jsonl`, each also as `.gz`, in UTF-8, and
stdin, which is told by how it begins. Whatever is wrong is a DataError that names file and line.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from bertkit.data.labels import number as finite
from bertkit.data.paths import suffix
from bertkit.data.readers import STDIN, json_object, read_text
from bertkit.data.row_errors import each_of
from bertkit.errors import DataError, did_you_mean

TABLES = (".tsv", ".csv", ".jsonl")

SEPARATORS, LOOKED_AT = ",;\t", 100
"""What may divide the columns of a .csv file, and of how many rows it is told."""

DECIMAL = re.compile(r"\s*[+-]?\d+,\d+\s*")
"""A number with a decimal comma."""

COLUMN_NAMES = frozenset(
    {"text", "text_a", "text_b", "sentence", "sentence1", "sentence2", "sentence_a", "sentence_b"}
    | {"question", "answer", "context", "premise", "hypothesis", "query", "document", "passage"}
    | {"#1 string", "#2 string", "qtext", "atext", "title", "review", "comment", "word", "token"}
    | {"anchor", "positive", "negative", "pair"}
    | {"label", "labels", "class", "category", "target", "score", "similarity", "quality", "tag"}
    | {"gold_label", "entailment_label", "relatedness_score", "id", "idx", "index", "pair_id"}
)
"""Names by which a first line is known as a header, in small letters."""

NAME = re.compile(r"[^\W\d][\w .#-]{0,30}(?<!\.)")
"""What a column may be called, for a first line without a usual name."""

TRUTH = frozenset({"true", "false"})
MISSING = frozenset({"na", "nan", "none", "null", "nil", "missing", "unknown"})
"""What stands for a number that is not there, in small letters: it names no column."""

HAN = re.compile("[\u3040-\u309f\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u30a0-\u30ff]")
"""Characters of scripts without spaces between words: Chinese characters and hiragana, with about
two per word; Thai, Lao, Tibetan, Burmese, Khmer and katakana, with about four."""

FEWEST = 3
"""Rows from which the values of a column tell something."""


@dataclass
class LabeledTable:
    """The rows of a labelled file, every value as text.

    Shapes: `rows` and `lines` are equally long; lines[i] is where rows[i] begins, from 1.
    `said` tells in a sentence how the columns were named, for the user to check. `unnamed` where
    no header line was seen, and the caller did not say that there is none.
    """

    file: Path
    columns: list[str]
    rows: list[dict[str, str]]
    lines: list[int]
    said: str
    unnamed: bool = False

    def expect(self, named: Collection[str]) -> None:
        """Take the first row as the header, if none was seen and a column named stands there."""
        if self.unnamed and _names_one(list(self.rows[0].values()), named):
            cells = [list(row.values()) for row in self.rows]
            lined = list(zip(self.lines, cells, strict=True))
            self.columns, self.said = _named_by_first(self.file, lined)
            self.rows = [dict(zip(self.columns, row, strict=True)) for row in cells[1:]]
            self.lines, self.unnamed = self.lines[1:], False


def rows(
    path: Path,
    *,
    header: bool | None = None,
    separator: str | None = None,
    named: Collection[str] = (),
) -> LabeledTable:
    """Read `.tsv` (without quoting), `.csv` (quoted) or `.jsonl`; each also as `.gz`.

    `header` None guesses whether the first line names the columns, which it does where one of the
    `named` stands in it; where it does not they are called "1", "2" and so on. JSON values that are
    not text are written as in JSON. `separator` divides columns, by default a tab, or in `.csv` a
    comma, or a semicolon or tab where that divides all rows alike and commas do not; `space` cuts a
    line after its first word. With a `separator`, files of any other suffix are read like `.txt`.
    Where the columns that matter are `named`, rows may have more or
    fewer others.
    Raises: DataError naming file and line, for ragged rows with the expected and found counts.
    """
    path = Path(path)
    kind = suffix(path)
    if kind not in (*TABLES, ".txt") and separator is None and path != STDIN and path.is_file():
        raise DataError(
            f"{path}: rows are read from .tsv, .csv, .jsonl and .txt files, also .gz; for a text "
            "file with another suffix, set --separator"
        )
    if separator is not None and separator != "space" and len(separator) != 1:
        raise DataError(f"separator: {separator!r}; give one character, or the word space")
    text = read_text(path)
    if path == STDIN:
        kind = _kind_of(text)
    if kind == ".jsonl":
        return _json_table(path, text)
    if kind == ".csv" and separator != "space":
        cells = list(_csv_cells(path, text, separator or _csv_separator(path, text)))
    else:
        cells = list(_tsv_cells(text, separator or "\t"))
    if separator is None and kind == ".txt" and all(len(row) == 1 for _, row in cells):
        raise DataError(
            f"{path}: {NO_TAB}; where the first word of a line is its label, say so "
            "(--separator space)"
        )
    return _table(path, cells, header, named)


NO_TAB = "no tab was found in any line, and tabs divide its columns"


def _kind_of(text: str) -> str:
    """The kind of a table by how it begins: an object, a line with a tab, or else CSV."""
    first = text.lstrip().partition("\n")[0]
    return ".jsonl" if first.startswith("{") else ".tsv" if "\t" in first else ".csv"


def _csv_separator(path: Path, text: str) -> str:
    """What divides the columns of a .csv file: what gives its first rows equally many, two at
    least. A comma goes before others, and is taken where none does; but not one that is the decimal
    comma of a column's numbers."""
    fitting: dict[str, list[list[str]]] = {}
    for separator in SEPARATORS:
        try:
            first = [row for _, row in islice(_csv_cells(path, text, separator), LOOKED_AT)]
            (width,) = {len(row) for row in first}
        except (DataError, ValueError):  # its quotes are others', or rows differ
            continue
        if width > 1:
            fitting[separator] = first
    for separator, first in fitting.items():
        columns = zip(*first[1:], strict=True)
        if any(all(map(DECIMAL.fullmatch, column)) for column in columns):
            return separator
    return next(iter(fitting), SEPARATORS[0])


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
    path: Path, cells: list[tuple[int, list[str]]], header: bool | None, named: Collection[str]
) -> LabeledTable:
    first = cells[0][1]
    headed = header
    if headed is None:
        others = [row for _, row in cells[1:]]
        headed = (
            _names_one(first, named)
            or _looks_like_header(first, others)
            or _unlike_the_others(first, others)
            or _names_texts(first, others)
        )
    if headed:
        columns, said = _named_by_first(path, cells)
        cells = cells[1:]
    else:
        columns = [str(i + 1) for i in range(len(first))]
        said = f"{path}: no header line; columns are called {', '.join(columns)}"
    needed = max((columns.index(name) + 1 for name in named if name in columns), default=None)

    def record(cell: tuple[int, list[str]]) -> dict[str, str]:
        line, row = cell
        if len(row) != len(columns) and (needed is None or len(row) < needed):
            raise DataError(
                f"{path}:{line}: expected {len(columns)} columns as in the first line, "
                f"found {len(row)}; mend this line"
            )
        return dict(zip_longest(columns, row[: len(columns)], fillvalue=""))

    records = each_of(record, cells)
    unnamed = header is None and not headed
    return LabeledTable(path, columns, records, [line for line, _ in cells], said, unnamed)


def _named_by_first(path: Path, cells: Sequence[tuple[int, list[str]]]) -> tuple[list[str], str]:
    """The columns that the first row names, and what is said of them. Raises: DataError."""
    first = cells[0][1]
    columns = [name.strip() for name in first]
    said = f"{path}: columns {', '.join(columns)} (named by the first line)"
    if len(set(columns)) < len(columns):
        raise DataError(f"{path}:1: two columns have the same name; rename one")
    if len(cells) == 1:
        raise DataError(f"{path}: only a header line, no rows")
    if again := [line for line, row in cells[1:] if row == first]:
        said += f"; warning: line {again[0]:,} repeats the names of the columns: remove it"
    return columns, said


# ---- whether a first line is a header


def _names_one(cells: list[str], named: Collection[str]) -> bool:
    """A column that the caller names; "1" is how one without a name is called."""
    numbered = {str(i + 1) for i in range(len(cells))}
    return not {cell.strip() for cell in cells}.isdisjoint(set(named) - numbered)


def _looks_like_header(cells: list[str], others: list[list[str]]) -> bool:
    """At least one usual name that is no value of its column, and nothing that reads like a
    sentence.

    Before others the first may be empty: pandas writes its index so.
    """
    names = [cell.strip().lower() for cell in cells]
    filled = names[not names[0] :]
    plain = all(0 < len(n) <= 40 and not n.endswith((".", "?", "!")) for n in filled)
    if not plain or len(set(names)) < len(names):
        return False
    rows = [row for row in others if row != cells]  # a header that is repeated stays one
    return any(
        # "positive" is a column of pairs, and a label
        not any(place < len(row) and row[place].strip().lower() == name for row in rows)
        for place, name in enumerate(names)
        if name in COLUMN_NAMES
    )


def _unlike_the_others(cells: list[str], others: list[list[str]]) -> bool:
    """A name above a column of numbers, or of true and false."""
    return len(others) >= FEWEST and any(
        _is_name(cell)
        and cell.strip().lower() not in MISSING
        and not _is_value(cell)
        and all(place < len(row) and _is_value(row[place]) for row in others)
        for place, cell in enumerate(cells)
    )


def _names_texts(cells: list[str], others: list[list[str]]) -> bool:
    """Names alone: one word of them above texts, another above values that come again without it.
    The first may be empty, as for a usual name."""
    names = [cell.strip() for cell in cells]
    plain = all(map(_is_name, names[not names[0] :])) and len(set(names)) == len(names)
    if not plain or len(others) < FEWEST or any(len(row) != len(cells) for row in others):
        return False
    text = labels = False
    for name, column in zip(names, zip(*others, strict=True), strict=True):
        if are_texts(column):
            text = text or (name != "" and " " not in name)
        elif name:
            different = {cell.strip() for cell in column}
            labels = labels or (name not in different and len(different) < len(column))
    return text and labels


def _is_name(cell: str) -> bool:
    letters = (c for c in cell.strip() if not unicodedata.category(c).startswith("M"))
    return NAME.fullmatch("".join(letters)) is not None  # \w has no vowel signs, as in Thai


def _is_value(cell: str) -> bool:
    return cell.strip().lower() in TRUTH or finite(cell) is not None


def are_texts(column: Sequence[str]) -> bool:
    """Return whether cells have three words on average.

    The words of scripts without spaces are estimated from their number of characters.
    """
    words = sum(
        cell.count(" ") + len(HAN.findall(cell)) / 2 + len(UNSPACED.findall(cell)) / 4
        for cell in column
    )
    return words >= 2 * len(column)


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
