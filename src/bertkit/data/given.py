"""Rows that a program has in memory, as the `.jsonl` file that every task reads.

A DataFrame (of pandas or polars), a `datasets.Dataset`, a table of pyarrow, a mapping of columns, a
column of texts, dicts, or (text, label) and (text, pair, label) tuples: columns are told by their
names and values, as those of a file are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import numpy as np

from bertkit.data.columns import choose_text
from bertkit.data.paths import suffix
from bertkit.data.readers import parquet_rows
from bertkit.data.tables import rows as read_table
from bertkit.errors import BertkitError, DataError

TUPLES = {1: ("text",), 2: ("text", "label"), 3: ("text", "pair", "label")}
"""What the items of a tuple are, by how many there are."""

KINDS = "a DataFrame, (text, label) tuples, dicts, or a file"

LARGEST_WHOLE = 2.0**53
"""Up to it a float that is a whole number is one exactly."""


def is_rows(items: Any) -> bool:
    """Whether items to be answered are rows with columns, or a column, and no list of texts."""
    if isinstance(items, str | bytes | tuple):
        return False
    if isinstance(items, Path | Mapping) or _is_table(items):
        return True
    if isinstance(items, Sequence):
        return bool(items) and isinstance(items[0], Mapping)
    return isinstance(items, Sized)  # of pandas or numpy a column


def several(texts: Any, column: str | None = None) -> Any:
    """What is asked of a pipeline, as many: one text as a list of it, rows as their texts."""
    if isinstance(texts, str):
        return [texts]
    return texts_of(texts, column, "texts") if is_rows(texts) else texts


def are_examples(rows: Any) -> bool:
    """Whether these are a task's own examples, which know where they stand."""
    # a column of pandas has a method of that name
    return (
        isinstance(rows, Sequence) and bool(rows) and isinstance(getattr(rows[0], "where", 0), str)
    )


@contextmanager
def as_file(rows: Any, name: str) -> Iterator[tuple[Path, Callable[[str], str]]]:
    """A `.jsonl` file of rows, a line each, and what makes words about it words about the rows.

    `name` is what the program calls them: the file's fifth line becomes `name[4]`, or of pandas
    `name.iloc[4]`, in errors that the block raises as well. A `.parquet` file is rows, too.
    Raises: DataError for what no file of rows can hold.
    """
    rows = list(rows) if isinstance(rows, Iterator) else rows
    place = _place(rows, name)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        lines = re.compile(re.escape(str(path)) + r":(\d+)")

        def told(words: str) -> str:
            words = lines.sub(lambda line: f"{place}[{int(line[1]) - 1}]", words)
            return words.replace(str(path), name)

        _write(rows, name, path)
        if not path.stat().st_size:
            raise DataError(f"{name}: no rows")
        try:
            yield path, told
        except BertkitError as error:
            raise type(error)(told(str(error))) from None


def texts_of(rows: Any, text: str | None, name: str) -> Sequence[str]:
    """The texts of any rows, or of a file of rows: of its column `text`, or the one that reads so.

    Raises: DataError for an empty text, or where no column can be told.
    """
    if isinstance(rows, Sequence) and all(isinstance(one, str) for one in rows):
        return rows
    if isinstance(rows, Path) and suffix(rows) != ".parquet":
        return _texts(rows, text)
    with as_file(rows, str(rows) if isinstance(rows, Path) else name) as (path, _):
        return _texts(path, text)


def _texts(path: Path, text: str | None) -> list[str]:
    table = read_table(path)
    column = choose_text(table, text)
    for row, line in zip(table.rows, table.lines, strict=True):
        if not row[column].strip():
            raise DataError(f"{path}:{line}: the text is empty; remove the row")
    return [row[column] for row in table.rows]


# ---- as rows


def _place(rows: Any, name: str) -> str:
    """What a row's number stands behind: pandas asks for `iloc`."""
    return f"{name}.iloc" if hasattr(rows, "iloc") else name


def name_of(rows: Any) -> str | None:
    """Return the name of a `datasets.Dataset`, or the type of another table; None for others."""
    if not _is_table(rows):
        return None
    info = getattr(rows, "info", None)  # a method of a DataFrame
    parts = [getattr(info, name, None) for name in ("dataset_name", "config_name")]
    parts.append(getattr(rows, "split", None))
    words = [str(part) for part in parts if part is not None and str(part) != "default"]
    if isinstance(parts[0], str):
        return " ".join(words)
    return f"{type(rows).__module__.partition('.')[0]} {type(rows).__name__}"


def _is_table(rows: Any) -> bool:
    return hasattr(rows, "columns") or hasattr(rows, "column_names")


def _records(rows: Any, name: str) -> Iterator[Mapping[Any, Any]]:
    if isinstance(rows, Path):
        yield from parquet_rows(rows)
    elif isinstance(rows, Mapping):
        yield from _of_columns(rows, name)
    elif hasattr(rows, "itertuples"):  # pandas
        columns = [str(column) for column in rows.columns]
        if twice := {column for column in columns if columns.count(column) > 1}:
            raise DataError(f"{name}: two columns are called {min(twice)!r}; rename one")
        for row in rows.itertuples(index=False, name=None):
            yield dict(zip(columns, row, strict=True))
    elif hasattr(rows, "iter_rows"):  # polars
        yield from rows.iter_rows(named=True)
    elif hasattr(rows, "to_batches"):  # pyarrow
        for batch in rows.to_batches():
            yield from batch.to_pylist()
    elif hasattr(rows, "features"):  # datasets
        yield from of_dataset(rows)
    else:
        yield from _of_items(rows, name)


def _of_columns(columns: Mapping[Any, Any], name: str) -> Iterator[Mapping[Any, Any]]:
    if part := next((key for key, part in columns.items() if _is_table(part)), None):
        raise DataError(f"{name}: holds parts, each a table; give one, such as [{part!r}] of it")
    for column, cells in columns.items():
        if isinstance(cells, str) or not hasattr(cells, "__iter__"):
            raise DataError(f"{name}: {column!r} is {_a(cells)}, and no column; give a list")
    values = {column: _cells(cells) for column, cells in columns.items()}
    sizes = {column: len(cells) for column, cells in values.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{column!r} {size:,}" for column, size in sizes.items())
        raise DataError(f"{name}: columns of different lengths ({told}); make them equal")
    for row in zip(*values.values(), strict=True):
        yield dict(zip(values, row, strict=True))


def of_dataset(rows: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a `datasets.Dataset`; numbers of classes come as the names of these."""
    named: dict[str, Callable[[Any], Any]] = {}
    for column, feature in (rows.features or {}).items():
        kinds: tuple[Any, ...] = (feature, getattr(feature, "feature", None))  # of a list's items
        for kind in kinds:
            if hasattr(kind, "int2str"):
                named[column] = kind.int2str
    for row in rows:
        yield {column: _classes(named.get(column), value) for column, value in row.items()}


def _classes(name: Callable[[Any], Any] | None, value: Any) -> Any:
    if name is None or value is None or (isinstance(value, int) and value < 0):
        return value if name is None else None  # -1 in published test sets
    return name(value)


def _of_items(rows: Any, name: str) -> Iterator[Mapping[Any, Any]]:
    if _are_columns(rows):
        raise DataError(
            f"{name}: a {type(rows).__name__} of columns; give a DataFrame, or "
            "list(zip(texts, labels))"
        )
    first, place = "", _place(rows, name)
    for number, item in enumerate(_cells(rows)):
        if isinstance(item, str) or _missing(item):
            item = (item,)
        if not isinstance(item, Mapping | tuple | list | np.ndarray):
            raise DataError(f"{place}[{number}]: {_a(item)} is no row; give {KINDS}")
        kind = "a dict" if isinstance(item, Mapping) else f"{len(item)} item{'s' * (len(item) > 1)}"
        first = first or kind
        if kind != first:
            raise DataError(f"{place}[{number}]: {kind}, and {place}[0] is {first}; give all alike")
        if isinstance(item, Mapping):
            yield item
        elif len(item) in TUPLES:
            yield dict(zip(TUPLES[len(item)], item, strict=True))
        else:
            raise DataError(
                f"{place}[{number}]: {kind}; give (text, label) or (text, pair, label), or dicts"
            )


def _are_columns(rows: Any) -> bool:
    """Columns side by side, where rows are wanted: of a library, or too long to be rows."""
    if not isinstance(rows, list | tuple) or len(rows) not in TUPLES:
        return False
    if any(hasattr(one, "to_pylist") or hasattr(one, "to_list") for one in rows):
        return True
    cells = all(isinstance(one, list | np.ndarray) for one in rows)
    return cells and isinstance(rows, tuple) and min(map(len, rows)) > max(TUPLES)


def _cells(column: Any) -> Sequence[Any]:
    """The values of a column, of whichever library."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            cells: list[Any] = getattr(column, method)()
            return cells
    return column if isinstance(column, Sequence) else list(column)


# ---- as lines


def _write(rows: Any, name: str, path: Path) -> None:
    """Cells as pandas writes them to a .csv file; as JSON has them where any row holds a list."""
    place = _place(rows, name)
    lists = any(isinstance(value, LISTS) for row in _records(rows, name) for value in row.values())
    cell = json_value if lists else _cell
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(_records(rows, name)):
            try:
                line = {str(key): cell(value) for key, value in row.items()}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            except TypeError:
                column, value = next((k, v) for k, v in row.items() if not _writable(v))
                raise DataError(
                    f"{place}[{number}]: column {column!r} holds {_a(value)}; give text, numbers "
                    "or lists, or drop the column"
                ) from None
            except UnicodeEncodeError:
                raise DataError(
                    f"{place}[{number}]: half of a surrogate pair is no character; write \\ufffd"
                ) from None


LISTS = (list, tuple, set, frozenset, Mapping, np.ndarray)


def _cell(value: Any) -> Any:
    """A cell of a .csv file: `True` and `1.0`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value)
    return value if isinstance(value, float) and math.isfinite(value) else json_value(value)


def json_value(value: Any) -> Any:
    """As JSON has it: nothing for what is missing, lists for arrays and sets, no whole floats."""
    if isinstance(value, str):
        return value
    if _missing(value):
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
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE:
        return int(value)  # arrays of labels or of offsets may hold floats
    if isinstance(value, Enum):
        return json_value(value.value)
    if isinstance(value, date | time | timedelta | Decimal | UUID | PurePath):
        return str(value)
    return value


def _missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and not math.isfinite(value)


def _writable(value: Any) -> bool:
    try:
        json.dumps(json_value(value))
    except TypeError:
        return False
    return True


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
