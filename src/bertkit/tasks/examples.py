"""Labelled examples of a task, from a file or as they are given."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.console import say
from bertkit.data.readers import STDIN
from bertkit.errors import DataError
from bertkit.storage import sha256
from bertkit.tasks.task import Reading, Task


@dataclass(frozen=True)
class Examples:
    """Labelled examples, and the hash by which a run knows them again.

    `held_out` says how rows were drawn from those to learn from, if they were.
    """

    examples: Sequence[Any]
    file: str | None
    sha256: str
    held_out: Mapping[str, Any] | None = None

    @property
    def record(self) -> dict[str, Any]:
        """What a run's record says of them."""
        about = {"file": self.file, "rows": len(self.examples), "sha256": self.sha256}
        return about if self.held_out is None else {**about, "held_out": {**self.held_out}}


Rows = Path | str | Sequence[Any] | Examples
"""A labelled file, or its examples."""


def read_examples(
    task: type[Task[Any, Any]],
    path: Path | str,
    reading: Reading | None = None,
    *,
    labelled: bool = True,
) -> list[Any]:
    """The examples of a file; how it was read is said. Raises: DataError naming file and line."""
    examples, columns = task.read(Path(path), reading or Reading(), labelled=labelled)
    say(columns)
    if not examples:
        raise DataError(f"{path}: no rows")
    return examples


def take_examples(
    task: type[Task[Any, Any]], train: Rows, dev: Rows, reading: Reading | None
) -> tuple[Examples, Examples]:
    """Rows to learn from and to score on, with their hashes. Raises: DataError for none."""
    return take(task, train, reading, "train"), take(task, dev, reading, "dev")


def take(task: type[Task[Any, Any]], rows: Rows, reading: Reading | None, name: str) -> Examples:
    """Rows of a file or of a program, with their hash. Raises: DataError for none."""
    if isinstance(rows, Examples):
        return rows
    if isinstance(rows, str | Path) and Path(rows) == STDIN:
        raise DataError(f"{name}: stdin, which a run that goes on cannot read again; name a file")
    if isinstance(rows, str | Path):
        return Examples(read_examples(task, rows, reading), str(rows), sha256(Path(rows)))
    if not rows:
        raise DataError(f"{name}: no rows")
    text = "\n".join(map(repr, rows)).encode("utf-8", "surrogatepass")
    return Examples(rows, None, hashlib.sha256(text).hexdigest())
