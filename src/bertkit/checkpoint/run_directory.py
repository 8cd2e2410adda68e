"""Names of the files that a training run writes, and a warning about unfinished runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.console import say
from bertkit.errors import CheckpointError, format_message
from bertkit.storage import read_bytes

RUN, JOURNAL = "run.json", "journal.jsonl"
"""File with the settings of a run, and file with the records of its steps and epochs."""

SCORES, TEST = "scores.json", "test.json"
"""Files with the scores of a fine-tuned model on the dev set and on the test set.

`scores.json` is written after the last epoch.
"""

EXPERIMENT = "experiment.json"
"""File with the settings and results of `bertkit experiment`."""

TUNING_FILE = "tuned.json"
"""File with the result of `bertkit export tune`."""

MAX_JOURNAL_BYTES = 512 << 20
"""Maximum size in bytes of a journal. The record of a step has about 150 bytes."""

CHECKPOINTS = "checkpoints"
"""Directory with the checkpoints of a pretraining run. The model is the latest checkpoint."""


def warn_unfinished(folder: Path) -> None:
    """Warn if the run that wrote a model has not finished, and print how to resume it.

    Args:
        folder: Model directory.
    """
    match next(_records(folder / RUN), None):
        case {"settings": {"epochs": int(epochs)}, "data": {"dev": _}}:
            # If no epoch has finished, there is no model, and `load` raises an error.
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
        f"warning: {folder}: {run} has not finished; this is {progress}; "
        + format_message("resume it with --resume")
    )


def _last(folder: Path, key: str, other_key: str) -> int:
    """Return the largest value of a key in the records that also have another key, or 0."""
    records = _records(folder / JOURNAL, f'"{other_key}"'.encode())
    numbers = (record.get(key) for record in records)
    return max((number for number in numbers if isinstance(number, int)), default=0)


def _records(path: Path, text: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the lines of a file that contain `text`.

    If `text` is empty, the whole file is parsed as one JSON object. Invalid JSON is skipped.

    Raises:
        CheckpointError: If the path is not a regular file, or the file is too large.
    """
    # The path does not exist if the model is a single file, such as a GGUF file.
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
