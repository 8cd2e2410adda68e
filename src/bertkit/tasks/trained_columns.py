"""Columns that the user set in training. They are stored in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bertkit.config import decode
from bertkit.data.columns import label_columns
from bertkit.data.row_readers import Rows, Source
from bertkit.errors import ConfigError, DataError
from bertkit.tasks.task import Reading

COLUMNS = ("text_column", "pair_column", "label_column")


def with_columns(settings: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """Add the columns that the user set in training to the settings of a task.

    Args:
        settings: Content of `config.json`.
        reading: Columns that the user set.
    """
    named = {option: name for option in COLUMNS if (name := getattr(reading, option)) is not None}
    if not named:
        return dict(settings)
    section = settings["bertkit"]
    return {**settings, "bertkit": {**section, "task": {**section["task"], "columns": named}}}


def columns_in(settings: Mapping[str, Any]) -> Reading:
    """Return the columns in `config.json`. If they are missing or invalid, no column is set."""
    match settings:
        case {"bertkit": {"task": {"columns": {**named}}}}:
            try:
                return decode(Reading, named)
            except ConfigError:  # Other software can write any value into the file.
                pass
    return Reading()


def open_rows(source: Source, reading: Reading) -> Rows:
    """Read the rows of a file. Rows in memory are returned unchanged.

    Args:
        source: The file or rows.
        reading: Format of the file.

    Raises:
        DataError: If the file cannot be read.
    """
    if isinstance(source, Rows):
        return source
    return Rows.read(source, header=reading.header, separator=reading.separator)


def try_rows(path: Path, reading: Reading) -> Source:
    """Return the rows of a file, or its path if it contains no rows."""
    try:
        return open_rows(path, reading)
    except DataError:  # The reader of the task reports the error, or reads another format.
        return path


def as_learned(reading: Reading, learned: Reading, rows: Rows, *, labeled: bool) -> Reading:
    """Return `reading`, in which each column that is not set is set as in training.

    A column is only set if the rows have it.

    Args:
        reading: Columns that the user set now.
        learned: Columns that the user set in training.
        rows: The rows.
        labeled: Whether labels are read. If not, the column of the labels may exist but be empty.
    """
    named = {getattr(reading, option) for option in COLUMNS}
    existing = {
        option: name
        for option in COLUMNS
        if (labeled or option != "label_column")
        and getattr(reading, option) is None
        and (name := getattr(learned, option)) is not None
        and name not in named
        and not (rows.header and name.isdecimal())  # This is the number of a column, not a name.
        and set(label_columns(name, rows.columns)) <= set(rows.columns)
    }
    return msgspec.structs.replace(reading, **existing)
