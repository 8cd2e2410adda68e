"""Rows that are read from files or Python objects, in one form that all tasks use."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UNSET

from bertkit.data.document_readers import STDIN, json_object, numbered, parquet_rows, read_text
from bertkit.data.paths import suffix
from bertkit.data.row_errors import raise_errors, read_each
from bertkit.data.values import json_value, text_of
from bertkit.errors import DataError, did_you_mean

R = TypeVar("R")

TABLES = (".tsv", ".csv", ".jsonl")
"""Types of files with rows that may be compressed (.gz)."""

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
"""Character that separates columns, by file type."""

NAMES = {",": "comma", ";": "semicolon", "\t": "tab"}
"""Names of separators, for error messages."""

WORDS = ("tab", "space")
"""Separators that the user writes as a word."""


class Rows:
    """Table of rows with named columns, and the location of each row.

    Values are strings if they are read from .csv or .tsv files, and JSON values if they are read
    from .jsonl files. Rows in memory can contain any values. If a row does not have a field, its
    value is UNSET.

    Attributes:
        name: Path of the file, or name of the argument in Python.
        columns: Names of the columns.
        summary: Message that lists the columns, so that the user can check them.
        header: Whether the first line of the file contains the names of the columns.
        separator: Character that separates the columns, or an empty string if the values have
            types, as in JSON.
        lines: Number of the line at which each row begins, starting at 1, or None if rows are
            numbered from 0.
    """

    def __init__(
        self,
        name: str,
        values: Mapping[str, Sequence[Any]],
        *,
        lines: Sequence[int] | None = None,
        prefix: str | None = None,
        text: Callable[[Any], str] = str,
        plain: Callable[[Any], Any] | None = None,
    ) -> None:
        """Create a table from columns of equal length.

        Args:
            name: Path of the file, or name of the argument in Python.
            values: The values of each column.
            lines: Number of the line at which each row begins, starting at 1. Default: rows are
                numbered from 0.
            prefix: Name that precedes the number of a row in a location. Default: `name`.
            text: Function that converts a value to text.
            plain: Function that converts a value to a JSON value. Default: values are JSON values
                already.
        """
        self.name = name
        self.columns = list(values)
        self.summary = f"{name}: columns {', '.join(self.columns)}"
        self.header = False
        self.separator = ""
        self._values = values
        self.lines = lines
        self._prefix = name if prefix is None else prefix
        self._text, self._plain = text, plain
        self._uneven: list[tuple[int, int]] = []
        self._quoted = False

    @classmethod
    def read(cls, path: Path, *, header: bool = True, separator: str | None = None) -> Rows:
        """Read a table from a .tsv, .txt, .csv, .jsonl, or .parquet file.

        Values in .csv files can be enclosed in quotation marks. In .tsv and .txt files, quotation
        marks have no special meaning. All files except .parquet can be compressed (.gz).

        Args:
            path: The file. Stdin is read as JSON Lines if it begins with `{`, as tab-separated
                values if its first line contains a tab, and otherwise as CSV.
            header: Whether the first line contains the names of the columns. If false, the columns
                are called "1", "2", and so on.
            separator: Character that separates columns, or the word `tab`. The word `space` splits
                each line after its first word. If a separator is set, the file may have any
                suffix. Default: a comma for .csv, and a tab for other files.

        Raises:
            DataError: If the file cannot be read.
        """
        path = Path(path)
        kind = suffix(path)
        if kind == ".parquet":
            return cls.collect(str(path), parquet_rows(path), text=text_of, plain=json_value)
        if kind not in (*TABLES, ".txt") and separator is None and path != STDIN and path.is_file():
            raise DataError(
                f"{path}: unsupported file type; use .tsv, .csv, .jsonl, .txt or .parquet, or set "
                "--separator for a text file with another suffix"
            )
        if separator is not None and separator not in WORDS and len(separator) != 1:
            raise DataError(f"separator must be one character, tab or space, got {separator!r}")
        text = read_text(path)
        first = text.lstrip("\n\r ").partition("\n")[0]
        if path == STDIN:
            kind = ".jsonl" if first.startswith("{") else ".tsv" if "\t" in first else ".csv"
        if kind == ".jsonl":
            return _read_json(path)
        if separator is None:
            separator = SEPARATORS[kind]
            if header:
                _check_separator(path, first, separator)
        separator = "\t" if separator == "tab" else separator
        quoted = kind == ".csv" and separator != "space"
        read = _split_csv if quoted else _split_lines
        lines, cells = read(path, text, separator)
        warning = _warning_about_quotes(lines, cells, quoted)
        rows = _with_header(path, lines, cells, header)
        rows.separator, rows._quoted = separator, quoted
        rows.summary += warning
        return rows

    @classmethod
    def collect(cls, name: str, records: Iterable[Mapping[Any, Any]], **options: Any) -> Rows:
        """Create a table from records, which may have different fields."""
        values: dict[str, list[Any]] = {}
        count = 0
        for count, record in enumerate(records, 1):
            for key, value in record.items():
                column = values.get(key)
                if column is None:
                    column = values[key] = [UNSET] * (count - 1)
                column.append(value)
            if len(record) < len(values):
                for column in values.values():
                    if len(column) < count:
                        column.append(UNSET)
        return cls(name, {str(key): column for key, column in values.items()}, **options)

    def __len__(self) -> int:
        return len(next(iter(self._values.values()), ()))

    def __str__(self) -> str:
        return self.name

    def where(self, index: int) -> str:
        """Return the location of a row, such as `rows.csv:17` or `train[16]`."""
        if self.lines is None:
            return f"{self._prefix}[{index}]"
        return f"{self._prefix}:{self.lines[index]}"

    def check_lengths(self, *names: str) -> None:
        """Check that all rows have the same number of columns.

        Args:
            *names: The only columns that are used. If this is set, rows may differ in the number of
                other columns.

        Raises:
            DataError: If the number of columns differs between rows.
        """
        needed = max((self.columns.index(name) + 1 for name in names), default=None)
        raise_errors(
            [
                DataError(
                    f"{self.where(index)}: expected {len(self.columns)} columns as in the first "
                    f"line, got {count}; fix this line"
                )
                for index, count in self._uneven
                # In a .csv file, a longer row has a comma that is not enclosed in quotation marks.
                if needed is None or count < needed or (count > needed and self._quoted)
            ]
        )

    def texts(self, column: str) -> Sequence[str]:
        """Return the values of a column as text. Missing values become empty strings.

        Raises:
            DataError: If a row does not have the column, or a value cannot be converted to text.
        """
        values = self._values[column]
        if self.separator:
            return values

        def text(index: int) -> str:
            value = values[index]
            if isinstance(value, str):
                return value
            if value is UNSET:
                near = did_you_mean(column, self.record(index))
                raise DataError(f"{self.where(index)}: no field {column!r}; {near}")
            try:
                return self._text(value)
            except TypeError:
                raise DataError(
                    f"{self.where(index)}: column {column!r} contains {type(value).__name__}; use "
                    "text, numbers, or lists, or remove the column"
                ) from None

        return read_each(text, range(len(values)))

    def record(self, index: int) -> dict[str, Any]:
        """Return the fields of a row, as JSON values by name."""
        fields = {name: column[index] for name, column in self._values.items()}
        return {
            name: value if self._plain is None else self._plain(value)
            for name, value in fields.items()
            if value is not UNSET
        }

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the location and the fields of each row."""
        return ((self.where(index), self.record(index)) for index in range(len(self)))

    @property
    def sha256(self) -> str:
        """Hash of all values."""
        digest = hashlib.sha256()
        for location, record in self.records():
            try:
                line = json.dumps(record, ensure_ascii=False, default=str)
                digest.update(line.encode() + b"\n")
            except UnicodeEncodeError:
                raise DataError(f"{location}: lone surrogate; replace it with \\ufffd") from None
        return digest.hexdigest()


Source = Path | Rows
"""Source of a task's examples: a file, or rows."""


def read_records(read: Callable[[str, dict[str, Any]], R], source: Source) -> list[R]:
    """Call `read(location, fields)` for each row of a .jsonl file or table, and return the results.

    Raises:
        DataError: If one row cannot be used.
        BadRows: If several rows cannot be used.
    """
    if isinstance(source, Rows):
        return read_each(lambda i: read(source.where(i), source.record(i)), range(len(source)))

    def line(numbered_line: tuple[int, str]) -> R:
        location = f"{source}:{numbered_line[0]}"
        return read(location, json_object(numbered_line[1].encode(), location))

    return read_each(line, numbered(source))


def has_records(source: Source) -> bool:
    """Return whether a source is a table of rows or a .jsonl file."""
    return isinstance(source, Rows) or suffix(source) == ".jsonl"


def _read_json(path: Path) -> Rows:
    lines = numbered(path)
    records = read_each(lambda line: json_object(line[1].encode(), f"{path}:{line[0]}"), lines)
    return Rows.collect(str(path), records, lines=[number for number, _ in lines], text=text_of)


def _warning_about_quotes(lines: list[int], cells: list[list[str]], quoted: bool) -> str:
    """Return a warning if a value still has the quotation marks that enclose it in a .csv file."""
    start, remedy = '"', "name the file .csv and set --separator tab"
    if quoted:
        start, remedy = ' "', "remove the space before them"
    for line, row in zip(lines, cells, strict=True):
        for cell in row:
            if not cell.startswith(start) or not cell.endswith('"'):
                continue
            inside = cell.lstrip(" ")[1:-1]
            # Without doubled quotation marks inside, they may be part of the text of a .tsv file.
            if '"' not in inside.replace('""', "") and (quoted or '""' in inside):
                return (
                    f"; warning: line {line:,} has quotation marks around a value, which are read "
                    f"as part of the value; {remedy}"
                )
    return ""


def _check_separator(path: Path, first: str, separator: str) -> None:
    """Raise a DataError if the header line contains another separator instead of this one."""
    if separator in first:
        return
    for other in NAMES:
        if other in first:
            written = "tab" if other == "\t" else repr(other)
            raise DataError(
                f"{path}: the header line contains no {NAMES[separator]} but a {NAMES[other]}; "
                f"set --separator {written} if the {NAMES[other]} separates the columns"
            )


def _split_lines(path: Path, text: str, separator: str) -> tuple[list[int], list[list[str]]]:
    lines, cells = [], []
    spaces = None if separator == "space" else " "  # A line of tabs is a row of empty cells.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line.strip(spaces):
            lines.append(number)
            cells.append(line.split(separator) if spaces else line.split(None, 1))
    return lines, cells


def _split_csv(path: Path, text: str, separator: str) -> tuple[list[int], list[list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # A cell may be a long document.
    rest = (f"{line}\n" for line in text.split("\n"))
    reader = csv.reader(rest, strict=True, delimiter=separator)
    lines, cells, line = [], [], 1
    try:
        for row in reader:
            if row:
                lines.append(line)
                cells.append(row)
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{line}: invalid CSV ({error}); check its quotes") from None
    return lines, cells


def _with_header(path: Path, lines: list[int], cells: list[list[str]], header: bool) -> Rows:
    first, repeated = cells[0], None
    if header:
        columns = [name.strip() for name in first]
        if len(set(columns)) < len(columns):
            raise DataError(
                f"{path}:{lines[0]}: two columns have the same name; rename one, or set "
                "--no-header if the first line is data"
            )
        if len(cells) == 1:
            raise DataError(f"{path}: only a header line; set --no-header if the line is data")
        del lines[0], cells[0]
        repeated = next((at for at, row in zip(lines, cells, strict=True) if row == first), None)
    else:
        columns = [str(number + 1) for number in range(len(first))]
    width = len(columns)
    uneven = [(index, len(row)) for index, row in enumerate(cells) if len(row) != width]
    values = islice(zip_longest(columns, *cells, fillvalue=""), width)
    rows = Rows(str(path), {name: column for name, *column in values}, lines=lines)
    rows.header, rows._uneven = header, uneven
    if not header:
        rows.summary += " (no header line)"
    if repeated is not None:
        rows.summary += f"; warning: line {repeated:,} repeats the header line; remove this line"
    return rows
