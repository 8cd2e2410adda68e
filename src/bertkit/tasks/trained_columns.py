"""Columns that were named for training, in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bertkit.config import decode
from bertkit.data.columns import label_columns
from bertkit.data.tables import rows
from bertkit.errors import ConfigError, DataError
from bertkit.tasks.task import Reading

ROLES = ("text", "pair", "label")


def with_columns(settings: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """Settings of a task as config.json has them, with the columns that were named for training."""
    encoded = dict(zip(Reading.__struct_fields__, Reading.__struct_encode_fields__, strict=True))
    named = {encoded[role]: name for role in ROLES if (name := getattr(reading, role)) is not None}
    if not named:
        return dict(settings)
    ours = settings["bertkit"]
    return {**settings, "bertkit": {**ours, "task": {**ours["task"], "columns": named}}}


def columns_in(settings: Mapping[str, Any]) -> Reading:
    """The columns that a folder's config.json names; none where it names none that can be."""
    match settings:
        case {"bertkit": {"task": {"columns": {**named}}}}:
            try:
                return decode(Reading, named)
            except ConfigError:  # of a folder that others wrote
                pass
    return Reading()


def as_learned(reading: Reading, learned: Reading, path: Path, *, labelled: bool) -> Reading:
    """Return `reading` with the columns of training that the file has, unless it names columns.

    Args:
        reading: The columns that the user named.
        learned: The columns that were named for training.
        path: The file.
        labelled: Whether the label is read. If not, its column may exist and be empty.
    """
    named = [name for role in ROLES if (name := getattr(reading, role)) is not None]
    required = {
        role: name
        for role in ROLES
        if (labelled or role != "label")
        and getattr(reading, role) is None
        and (name := getattr(learned, role)) is not None
        and name not in named
    }
    if not required:
        return reading
    names = [*required.values(), *label_columns(required.get("label"), ())]
    try:
        table = rows(path, header=reading.header, separator=reading.separator, named=names)
    except DataError:  # The task reports the error, or reads files of another form.
        return reading
    existing = {
        role: name
        for role, name in required.items()
        if set(label_columns(name, table.columns)) <= set(table.columns)
    }
    return msgspec.structs.replace(reading, **existing)
