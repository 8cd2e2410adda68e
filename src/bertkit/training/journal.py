"""Journal of a run: a JSON Lines file with losses, scores and speed."""

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
"""Largest absolute value that charts show. No valid loss or score is larger."""

Step = Annotated[int, Meta(ge=0, le=2**53)]


class JournalRecord(msgspec.Struct):
    """Types that the values of a record must have. A record may contain other keys and NaN."""

    step: Step
    epoch: Step = 0
    loss: float = 0.0
    learning_rate: float = 0.0
    held_out: dict[str, float] = {}
    held_out_accuracy: dict[str, float] = {}
    scores: dict[str, float] = {}


class Journal:
    """Reader and writer of `journal.jsonl`. Each record has a `step`.

    If a run is killed, the last line may be incomplete, and some lines may be newer than the last
    checkpoint. `rewind` removes these lines.

    Args:
        run: Run directory.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / JOURNAL
        self.on_record: Callable[[Mapping[str, Any]], None] | None = None
        """Function that is called with each record that is written."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record."""
        append_text(self.path, json.dumps(record) + "\n")
        if self.on_record is not None:
            self.on_record(record)

    def records(self) -> list[dict[str, Any]]:
        """Read the valid records.

        Raises:
            TrainingError: If the file cannot be read.
        """
        return self.read()[0]

    def read(self) -> tuple[list[dict[str, Any]], int]:
        """Read the valid records, and count the damaged lines.

        An incomplete last line does not count as damaged.

        Raises:
            TrainingError: If the file cannot be read.
        """
        try:
            lines = read_bytes(self.path, TrainingError, most=MAX_JOURNAL_BYTES).split(b"\n")
        except FileNotFoundError:
            return [], 0
        records, damaged = [], 0
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line.decode("utf-8"))
                msgspec.convert(record, JournalRecord)
            except (ValueError, OverflowError, RecursionError, msgspec.ValidationError):
                damaged += number < len(lines)
            else:
                records.append(record)
        return records, damaged

    def rewind(self, step: int) -> int:
        """Remove damaged lines and all records after `step`. Return the number of damaged lines."""
        records, damaged = self.read()
        lines = [json.dumps(record) + "\n" for record in records if record["step"] <= step]
        write_text(self.path, "".join(lines))
        return damaged


def skipped_lines(path: Path, damaged: int) -> str:
    """Return a message about damaged lines."""
    lines = "1 damaged line" if damaged == 1 else f"{damaged:,} damaged lines"
    return f"{path}: skipped {lines}"


def is_plottable(value: object) -> bool:
    """Return whether a value is a number that a chart can show. NaN cannot be shown."""
    return isinstance(value, int | float) and abs(value) <= MAX_VALUE
