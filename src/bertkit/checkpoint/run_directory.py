"""Files of a run in its model directory, and a warning about unfinished runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.console import say
from bertkit.errors import CheckpointError, format_message
from bertkit.storage import read_bytes

RUN, JOURNAL = "run.json", "journal.jsonl"
"""Settings of the run, and its records."""

SCORES, TEST = "scores.json", "test.json"
"""Scores of a fine-tuned model on dev, written after the last epoch, and on the test set."""

EXPERIMENT = "experiment.json"
"""Settings and results of `bertkit experiment`."""

TUNING_FILE = "tuned.json"
"""Result of `bertkit export tune`."""

MAX_JOURNAL_BYTES = 512 << 20
"""Largest size in bytes of a journal; a step takes about 150 bytes."""

CHECKPOINTS = "checkpoints"
"""Directory of checkpoints; the model of a pretraining run is the latest checkpoint."""


def warn_unfinished(folder: Path) -> None:
    """Warn if the model is from an unfinished run: log its epoch or step and how to resume.

    Args:
        folder: Model directory.
    """
    match next(_records(folder / RUN), None):
        case {"settings": {"epochs": int(epochs)}, "data": {"dev": _}}:
            # Before the first epoch there is no model, and `load` reports an error.
            if (folder / SCORES).exists() or not (epoch := _last(folder, "epoch", "scores")):
                return
            run, progress = "fine-tuning", f"the best model after epoch {epoch} of {epochs}"
        case {"config": {"train": {"steps": int(steps)}}}:
            if _last(folder, "step", "loss") >= steps:
                return
            checkpoints = (folder / CHECKPOINTS).glob("step-*")
            names = [path.name.removeprefix("step-") for path in checkpoints]
            step = max((int(name) for name in names if name.isdecimal()), default=0)
            run, progress = "pretraining", f"the model after step {step:,} of {steps:,}"
        case _:
            return
    say(
        f"warning: {folder}: {run} has not finished: this is {progress}; "
        + format_message("resume it with --resume")
    )


def _last(folder: Path, key: str, other_key: str) -> int:
    """Return the largest value of a key in the records with another key, or 0."""
    records = _records(folder / JOURNAL, f'"{other_key}"'.encode())
    numbers = (record.get(key) for record in records)
    return max((number for number in numbers if isinstance(number, int)), default=0)


def _records(path: Path, text: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of the lines that contain a text, or the object of the whole file.

    Raises:
        CheckpointError: If the path is not a regular file, or too large.
    """
    # The file also does not exist if the model is one file, such as a GGUF file.
    if not path.exists():
        return
    content = read_bytes(path, CheckpointError, most=MAX_JOURNAL_BYTES)
    for line in content.splitlines() if text else [content]:
        if text in line:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # A killed run can leave a partial line.
                continue
            if isinstance(record, dict):
                yield record
