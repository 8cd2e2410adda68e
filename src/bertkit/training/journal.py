"""What happened in a run: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bertkit.checkpoint.run_directory import JOURNAL, MAX_JOURNAL_BYTES
from bertkit.errors import TrainingError
from bertkit.storage import append_text, read_bytes, write_text

MAX_VALUE = 1e12
"""A number beyond it is no loss, rate or score, and is not drawn."""

Step = Annotated[int, Meta(ge=0, le=2**53)]


class JournalRecord(msgspec.Struct):
    """What a line has to be; it may say more. Numbers may be nan."""

    step: Step
    epoch: Step = 0
    loss: float = 0.0
    learning_rate: float = 0.0
    held_out: dict[str, float] = {}
    held_out_accuracy: dict[str, float] = {}
    scores: dict[str, float] = {}


class Journal:
    """Appends records to `journal.jsonl`; each has a `step`.

    After a kill the last line may be half-written and lines may be ahead of the checkpoint:
    `rewind` drops both.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / JOURNAL
        self.told: Callable[[Mapping[str, Any]], None] | None = None
        """Who else is told of each record."""

    def write(self, record: Mapping[str, Any]) -> None:
        append_text(self.path, json.dumps(record) + "\n")
        if self.told is not None:
            self.told(record)

    def records(self) -> list[dict[str, Any]]:
        """Raises: TrainingError for a file that cannot be read."""
        return self.read()[0]

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """The records, and how many lines are none; one that a kill cut is not counted.

        Raises: TrainingError for a file that cannot be read.
        """
        try:
            lines = read_bytes(self.path, TrainingError, most=MAX_JOURNAL_BYTES).split(b"\n")
        except FileNotFoundError:
            return [], 0
        records, damaged = [], 0
        for place, line in enumerate(lines, 1):
            try:
                record = json.loads(line.decode("utf-8"))
                msgspec.convert(record, JournalRecord)
            except (ValueError, OverflowError, RecursionError, msgspec.ValidationError):
                damaged += place < len(lines)
            else:
                records.append(record)
        return records, damaged

    def rewind(self, step: int) -> int:
        """Forget what came after `step`, and damaged lines; how many of those there were."""
        records, damaged = self.read()
        kept = [json.dumps(record) + "\n" for record in records if record["step"] <= step]
        write_text(self.path, "".join(kept))
        return damaged


def left_out(path: Path, damaged: int) -> str:
    """A sentence on lines that were none."""
    lines = "1 line is" if damaged == 1 else f"{damaged:,} lines are"
    return f"{path}: {lines} damaged, and left out"


def drawable(value: object) -> bool:
    """Whether it is a number that a picture can hold."""
    return isinstance(value, int | float) and abs(value) <= MAX_VALUE  # nan is not
