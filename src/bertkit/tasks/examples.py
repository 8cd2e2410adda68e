"""Labelled examples of a task, from a file or as they are given."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.console import say
from bertkit.errors import DataError
from bertkit.storage import sha256
from bertkit.tasks.task import Reading, Task


@dataclass(frozen=True)
class Examples:
    """Labelled examples, and the hash by which a run knows them again."""

    examples: Sequence[Any]
    file: str | None
    sha256: str


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
    return _taken(task, train, reading, "train"), _taken(task, dev, reading, "dev")


def _taken(task: type[Task[Any, Any]], rows: Rows, reading: Reading | None, name: str) -> Examples:
    if isinstance(rows, Examples):
        return rows
    if isinstance(rows, str | Path):
        return Examples(read_examples(task, rows, reading), str(rows), sha256(Path(rows)))
    if not rows:
        raise DataError(f"{name}: no rows")
    text = "\n".join(map(repr, rows)).encode("utf-8", "surrogatepass")
    return Examples(rows, None, hashlib.sha256(text).hexdigest())
