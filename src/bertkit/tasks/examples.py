"""Examples of a task, which are read from a file or from rows in memory, or passed as such."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertkit import memory
from bertkit.console import say
from bertkit.data.document_readers import STDIN
from bertkit.data.paths import suffix
from bertkit.data.row_errors import MAX_ROW_ERRORS, log_errors, raise_errors
from bertkit.data.row_readers import Rows, Source
from bertkit.data.rows_in_memory import are_examples, name_of, rows_of
from bertkit.errors import DataError
from bertkit.storage import sha256
from bertkit.tasks.task import E, Reading, Task
from bertkit.tasks.trained_columns import as_learned, try_rows


@dataclass(frozen=True)
class Examples:
    """Examples, and a hash by which a resumed run checks that they have not changed.

    If the examples were held out of the training rows, `held_out` describes how they were sampled.
    If they come from a data set in memory, `name` is its name or type.
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


RowsLike = Path | str | Iterable[Any] | Examples
"""A file of labeled rows, rows in memory (`data.rows_in_memory`), or examples of the task."""


def read_examples(
    task: type[Task[Any, Any]],
    source: Source | str,
    reading: Reading | None = None,
    *,
    labeled: bool = True,
    learned: Reading | None = None,
) -> list[Any]:
    """Read the examples from a file or from rows, and log which columns are used.

    Args:
        task: Class of the task.
        source: The file or rows.
        reading: Columns and format that the user set.
        labeled: Whether the examples need labels.
        learned: Columns that the user set in training. They are used if the rows have them and
            `reading` does not set other columns.

    Raises:
        DataError: If a row is invalid, or there are no rows.
    """
    source = Path(source) if isinstance(source, str) else source
    reading, learned = reading or Reading(), learned or Reading()
    if isinstance(source, Path) and suffix(source) == ".parquet":
        source = Rows.read(source)
    elif isinstance(source, Path) and learned != Reading():
        source = try_rows(source, reading)
    if isinstance(source, Rows):
        reading = as_learned(reading, learned, source, labeled=labeled)
    with log_errors(), memory.uncollected():
        examples, columns = task.reader.read(source, reading, labeled=labeled)
    say(columns)
    if not examples:
        raise DataError(f"{source}: no rows")
    return examples


def check_examples(task: Task[E, Any], examples: Sequence[E]) -> None:
    """Check that a task can score all examples. Otherwise, log the first errors.

    Args:
        task: The task.
        examples: Labeled examples.

    Raises:
        DataError: If an example cannot be scored.
        BadRows: If several examples cannot be scored.
    """
    try:
        task.check(examples)
    except DataError as error:
        errors = (fault for example in examples if (fault := find_error(task, example)))
        with log_errors():
            raise_errors(list(islice(errors, MAX_ROW_ERRORS)))
        # Each example is valid by itself, but the examples are not valid together.
        raise error


def find_error(task: Task[E, Any], example: E) -> DataError | None:
    """Return the error of an example that cannot be used for training or scoring, or None."""
    try:
        task.check([example])
    except DataError as error:
        return error
    return None


def take(
    task: type[Task[Any, Any]],
    rows: RowsLike,
    reading: Reading | None,
    name: str,
    *,
    labeled: bool = True,
    learned: Reading | None = None,
) -> Examples:
    """Return the examples of a file or of rows, together with their hash.

    Args:
        task: Class of the task.
        rows: A file, rows in memory, or examples.
        reading: Columns and format that the user set.
        name: Name of the rows, for messages.
        labeled: Whether the examples need labels.
        learned: Columns that the user set in training; see `read_examples`.

    Raises:
        DataError: If a row is invalid, or there are no rows.
    """
    if isinstance(rows, Examples):
        return rows
    if isinstance(rows, str | Path) and Path(rows) == STDIN:
        raise DataError(f"{name}: a resumed run cannot read stdin again; pass a file")
    if isinstance(rows, str | Path):
        examples = read_examples(task, rows, reading, labeled=labeled, learned=learned)
        return Examples(examples, str(rows), sha256(Path(rows)))
    if are_examples(rows):
        examples = list(rows)
        text = "\n".join(map(repr, examples)).encode("utf-8", "surrogatepass")
        return Examples(examples, None, hashlib.sha256(text).hexdigest())
    title = name_of(rows)
    source = rows_of(rows, name)
    digest = source.sha256
    examples = read_examples(task, source, reading, labeled=labeled, learned=learned)
    return Examples(examples, None, digest, name=title)
