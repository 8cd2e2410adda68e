"""Labelled examples of a task, from a file, from rows of a program, or as they are given."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit import memory
from bertkit.console import say
from bertkit.data.given import KINDS, are_examples, as_file, is_rows, name_of
from bertkit.data.paths import suffix
from bertkit.data.readers import STDIN
from bertkit.data.row_errors import MAX_ROW_ERRORS, refuse, shown
from bertkit.errors import DataError
from bertkit.storage import sha256
from bertkit.tasks.task import E, Reading, Task
from bertkit.tasks.trained_columns import as_learned


@dataclass(frozen=True)
class Examples:
    """Labeled examples, and the hash by which a resumed run recognizes them.

    `held_out` specifies how the rows were sampled from the training rows, if they were. `name` is
    the name or type of a data set in memory.
    """

    examples: Sequence[Any]
    file: str | None
    sha256: str
    held_out: Mapping[str, Any] | None = None
    name: str | None = None

    @property
    def record(self) -> dict[str, Any]:
        """Entry of the examples in the record of a run."""
        about = {"file": self.file, "rows": len(self.examples), "sha256": self.sha256}
        if self.name is not None:
            about["name"] = self.name
        return about if self.held_out is None else {**about, "held_out": {**self.held_out}}


Rows = Path | str | Iterable[Any] | Examples
"""A labelled file, rows of a program (`data.given`), or examples of the task."""


def read_examples(
    task: type[Task[Any, Any]],
    path: Path | str,
    reading: Reading | None = None,
    *,
    labelled: bool = True,
    learned: Reading | None = None,
) -> list[Any]:
    """The examples of a file; how it was read is said. `learned` are the columns of training, taken
    where the file has them and `reading` names none. Raises: DataError naming file and line.
    """
    if suffix(Path(path)) == ".parquet":
        with as_file(Path(path), str(path)) as (rows, told):
            return _read(task, rows, reading, told, labelled=labelled, learned=learned)
    return _read(task, Path(path), reading, str, labelled=labelled, learned=learned)


def check_examples(task: Task[E, Any], examples: Sequence[E]) -> None:
    """Raises: DataError for an example that the task cannot score, BadRows for several."""
    try:
        task.check(examples)
    except DataError as error:
        faults = (fault for example in examples if (fault := _fault(task, example)))
        with shown():
            refuse(list(islice(faults, MAX_ROW_ERRORS)))
        raise error  # each is sound by itself


def _fault(task: Task[E, Any], example: E) -> DataError | None:
    try:
        task.check([example])
    except DataError as error:
        return error
    return None


def take_examples(
    task: type[Task[Any, Any]], train: Rows, dev: Rows, reading: Reading | None
) -> tuple[Examples, Examples]:
    """Rows to learn from and to score on, with their hashes. Raises: DataError for none."""
    return take(task, train, reading, "train"), take(task, dev, reading, "dev")


def take(
    task: type[Task[Any, Any]],
    rows: Rows,
    reading: Reading | None,
    name: str,
    *,
    labelled: bool = True,
    learned: Reading | None = None,
) -> Examples:
    """Any rows with their hash; `name` is what a program calls them. Raises: DataError."""
    if isinstance(rows, Examples):
        return rows
    if isinstance(rows, str | Path) and Path(rows) == STDIN:
        raise DataError(f"{name}: stdin, which a run that goes on cannot read again; name a file")
    if isinstance(rows, str | Path):
        read = read_examples(task, rows, reading, labelled=labelled, learned=learned)
        return Examples(read, str(rows), sha256(Path(rows)))
    if are_examples(rows):
        examples = list(rows)
        text = "\n".join(map(repr, examples)).encode("utf-8", "surrogatepass")
        return Examples(examples, None, hashlib.sha256(text).hexdigest())
    title = name_of(rows)  # before an iterator is read
    if not (hasattr(rows, "__iter__") or is_rows(rows)):
        raise DataError(f"{name}: {type(rows).__name__} holds no rows; give {KINDS}")
    with as_file(rows, name) as (path, told):
        examples = _read(task, path, reading, told, labelled=labelled, learned=learned)
        return Examples(examples, None, sha256(path), name=title)


def _read(
    task: type[Task[Any, Any]],
    path: Path,
    reading: Reading | None,
    told: Callable[[str], str],
    *,
    labelled: bool,
    learned: Reading | None,
) -> list[Any]:
    """Examples, and what is said of them, in words of those who gave the rows."""
    reading = as_learned(reading or Reading(), learned or Reading(), path, labelled=labelled)
    with shown(told), memory.uncollected():
        examples, columns = task.read(path, reading, labelled=labelled)
    say(told(columns))
    if not examples:
        raise DataError(f"{path}: no rows")
    if told is str or not is_dataclass(examples[0]):  # a task from outside has what it likes
        return examples
    return [replace(example, where=told(example.where)) for example in examples]
