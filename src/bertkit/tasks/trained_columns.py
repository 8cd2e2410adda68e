"""The columns that a model learned from: its folder names them, and rows that have them are read
so."""

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
    named = {
        encoded[role]: name
        for role in ROLES
        if (name := getattr(reading, role)) is not None and not name.isdecimal()  # a place
    }
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
    """`reading` with the columns of training that the file has, where it names none itself; that
    of labels only where they are wanted, for it may be there and empty."""
    named = [name for role in ROLES if (name := getattr(reading, role)) is not None]
    wanted = {
        role: name
        for role in ROLES
        if (labelled or role != "label")
        and getattr(reading, role) is None
        and (name := getattr(learned, role)) is not None
        and name not in named
    }
    if not wanted:
        return reading
    names = [*wanted.values(), *label_columns(wanted.get("label"), ())]
    try:
        table = rows(path, header=reading.header, separator=reading.separator, named=names)
        table.expect(names)
    except DataError:  # the task says what is wrong, or reads files of another form
        return reading
    there = {
        role: name
        for role, name in wanted.items()
        # in its own column it is a label of the first row, which was taken for a header
        if all(
            column in table.columns and all(row[column].strip() != column for row in table.rows)
            for column in label_columns(name, table.columns)
        )
    }
    return msgspec.structs.replace(reading, **there)
