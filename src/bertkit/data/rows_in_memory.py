"""Conversion of Python objects to rows.

An object with rows can be a DataFrame (pandas or polars), a `datasets.Dataset`, a pyarrow table, a
mapping from names to columns, a single column of texts, or a list of dicts or of tuples (text,
label) or (text, pair, label).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import choose_text
from bertkit.data.row_readers import Rows
from bertkit.data.values import is_missing, json_value, text_of
from bertkit.errors import DataError

TUPLES = {1: ("text",), 2: ("text", "label"), 3: ("text", "pair", "label")}
"""Names of the columns that tuples contain, by length of the tuples."""

KINDS = "a DataFrame, (text, label) tuples, dicts, or a file"


def is_rows(items: Any) -> bool:
    """Return whether an object contains rows or is a column, and is not a list of texts."""
    if isinstance(items, str | bytes | tuple):
        return False
    if isinstance(items, Path | Mapping) or _is_table(items):
        return True
    if isinstance(items, Sequence):
        return bool(items) and isinstance(items[0], Mapping)
    return isinstance(items, Sized)  # This is a column of pandas or numpy.


def as_list(texts: Any, column: str | None = None) -> Any:
    """Convert a single text or rows to a list of texts. Other values are returned unchanged."""
    if isinstance(texts, str):
        return [texts]
    return texts_of(texts, column, "texts") if is_rows(texts) else texts


def are_examples(rows: Any) -> bool:
    """Return whether rows are examples of a task."""
    # The attribute `where` of an example is a string. In a pandas column, it is a method.
    return (
        isinstance(rows, Sequence) and bool(rows) and isinstance(getattr(rows[0], "where", 0), str)
    )


def rows_of(value: Any, name: str) -> Rows:
    """Convert a Python object to rows.

    Args:
        value: The object.
        name: Name of the argument in Python. Messages refer to a row as `name[4]`, or as
            `name.iloc[4]` for pandas.

    Raises:
        DataError: If the object does not contain rows, or there are no rows.
    """
    if not (hasattr(value, "__iter__") or is_rows(value)):
        raise DataError(f"{name}: unsupported type {type(value).__name__}; pass {KINDS}")
    prefix = f"{name}.iloc" if hasattr(value, "iloc") else name
    options: dict[str, Any] = {"prefix": prefix, "text": text_of, "plain": json_value}
    columns = _columns(value, name)
    if columns is not None:
        rows = Rows(name, columns, **options)
    else:
        items = (
            read_dataset(value)
            if hasattr(value, "features")
            else _item_records(value, name, prefix)
        )
        rows = Rows.collect(name, items, **options)
    if not len(rows):
        raise DataError(f"{name}: no rows; pass at least one row")
    return rows


def texts_of(rows: Any, text: str | None, name: str) -> Sequence[str]:
    """Return the texts in the rows of a Python object or of a file.

    Args:
        rows: A list of texts, an object that contains rows, or the Path of a file with rows.
        text: Column that contains the texts. Default: a column with a known name.
        name: Name of the argument in Python, for error messages.

    Raises:
        DataError: If a text is empty, or no column has a known name.
    """
    if isinstance(rows, Sequence) and all(isinstance(item, str) for item in rows):
        return rows
    table = Rows.read(rows) if isinstance(rows, Path) else rows_of(rows, name)
    texts = table.texts(choose_text(table, text))
    for index, item in enumerate(texts):
        if not item.strip():
            raise DataError(f"{table.where(index)}: the text is empty; remove the row")
    return texts


def name_of(rows: Any) -> str | None:
    """Return the name of a `datasets.Dataset`, the type of another table, or None."""
    if not _is_table(rows):
        return None
    # In a DataFrame, `info` is a method, which does not have these attributes.
    info = getattr(rows, "info", None)
    parts = [getattr(info, name, None) for name in ("dataset_name", "config_name")]
    parts.append(getattr(rows, "split", None))
    words = [str(part) for part in parts if part is not None and str(part) != "default"]
    if isinstance(parts[0], str):
        return " ".join(words)
    return f"{type(rows).__module__.partition('.')[0]} {type(rows).__name__}"


def _is_table(rows: Any) -> bool:
    return hasattr(rows, "columns") or hasattr(rows, "column_names")


def _columns(rows: Any, name: str) -> dict[str, Sequence[Any]] | None:
    """Return the columns of a table by name, or None if the rows are a sequence of items."""
    if isinstance(rows, Mapping):
        return _read_columns(rows, name)
    if hasattr(rows, "features") or not _is_table(rows):
        return None
    is_pandas = hasattr(rows, "iloc")
    listed = rows.columns if is_pandas or not hasattr(rows, "column_names") else rows.column_names
    names = [str(column) for column in listed]
    if twice := {column for column in names if names.count(column) > 1}:
        raise DataError(f"{name}: two columns are called {min(twice)!r}; rename one")
    if is_pandas:
        return {column: rows.iloc[:, i].tolist() for i, column in enumerate(names)}
    return {column: _cells(rows[column]) for column in names}


def _read_columns(columns: Mapping[Any, Any], name: str) -> dict[str, Sequence[Any]]:
    if part := next((key for key, part in columns.items() if _is_table(part)), None):
        raise DataError(f"{name} is a dict of tables; pass one of them, such as {name}[{part!r}]")
    for column, cells in columns.items():
        if isinstance(cells, str) or not hasattr(cells, "__iter__"):
            raise DataError(f"{name}: column {column!r} must be a list, got {_a(cells)}")
    values = {str(column): _cells(cells) for column, cells in columns.items()}
    sizes = {column: len(cells) for column, cells in values.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{column!r} {size:,}" for column, size in sizes.items())
        raise DataError(f"{name}: columns of different lengths ({counts}); make them equal")
    return values


def read_dataset(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a `datasets.Dataset`, with class indices replaced by class names."""
    named: dict[str, Callable[[Any], Any]] = {}
    for column, feature in (rows.features or {}).items():
        # The feature of a list contains the feature of its items.
        kinds: tuple[Any, ...] = (feature, getattr(feature, "feature", None))
        for kind in kinds:
            if hasattr(kind, "int2str"):
                named[column] = kind.int2str
    for row in rows:
        yield {column: _classes(named.get(column), value) for column, value in row.items()}


def _classes(name: Callable[[Any], Any] | None, value: Any) -> Any:
    if name is None or value is None or (isinstance(value, int) and value < 0):
        return value if name is None else None  # Published test sets use -1 for unknown labels.
    return name(value)


def _item_records(rows: Any, name: str, prefix: str) -> Iterator[Mapping[Any, Any]]:
    if _are_columns(rows):
        raise DataError(
            f"{name}: expected rows, got a {type(rows).__name__} of columns; pass a DataFrame, or "
            "list(zip(texts, labels))"
        )
    first = ""
    for number, item in enumerate(_cells(rows)):
        if isinstance(item, str) or is_missing(item):
            item = (item,)
        if not isinstance(item, Mapping | tuple | list | np.ndarray):
            raise DataError(f"{prefix}[{number}]: unsupported row {_a(item)}; pass {KINDS}")
        kind = "a dict" if isinstance(item, Mapping) else f"{len(item)} item{'s' * (len(item) > 1)}"
        first = first or kind
        if kind != first:
            raise DataError(f"{prefix}[{number}]: expected {first} as in {prefix}[0], got {kind}")
        if isinstance(item, Mapping):
            yield item
        elif len(item) in TUPLES:
            yield dict(zip(TUPLES[len(item)], item, strict=True))
        else:
            raise DataError(
                f"{prefix}[{number}]: got {kind}; pass (text, label), (text, pair, label), or dicts"
            )


def _are_columns(rows: Any) -> bool:
    """Return whether a list or tuple contains columns and not rows."""
    if not isinstance(rows, list | tuple) or len(rows) not in TUPLES:
        return False
    if any(hasattr(column, "to_pylist") or hasattr(column, "to_list") for column in rows):
        return True
    cells = all(isinstance(column, list | np.ndarray) for column in rows)
    return cells and isinstance(rows, tuple) and min(map(len, rows)) > max(TUPLES)


def _cells(column: Any) -> Sequence[Any]:
    """Convert a column of any library to a sequence of values."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            cells: list[Any] = getattr(column, method)()
            return cells
    return column if isinstance(column, Sequence) else list(column)


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
