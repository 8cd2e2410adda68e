"""What a run leaves in the folder of its model, and whether it has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.console import say
from bertkit.errors import CheckpointError, spoken
from bertkit.storage import read_bytes

RUN, JOURNAL = "run.json", "journal.jsonl"
"""What the run was asked to do, and what happened."""

SCORES, TEST = "scores.json", "test.json"
"""Scores of a fine-tuned model on dev, written after the last epoch, and on the test set."""

EXPERIMENT = "experiment.json"
"""Settings and results of `bertkit experiment`."""

TUNING_FILE = "tuned.json"
"""What `bertkit export tune` found."""

MAX_JOURNAL_BYTES = 512 << 20
"""Largest size in bytes of a journal; a step takes about 150 bytes."""

CHECKPOINTS = "checkpoints"
"""A folder for each kept step; the newest has the weights of a pretraining's model."""


def say_unfinished(folder: Path) -> None:
    """Say that a folder's model is that of the first epochs or steps alone, and how to go on."""
    match next(_records(folder / RUN), None):
        case {"settings": {"epochs": int(epochs)}, "data": {"dev": _}}:
            if (folder / SCORES).exists() or not (epoch := _last(folder, "epoch", "scores")):
                return  # none: there is no model yet, of which `load` says so
            run, far = "fine-tuning", f"the best model after epoch {epoch} of {epochs}"
        case {"config": {"train": {"steps": int(steps)}}}:
            if _last(folder, "step", "loss") >= steps:
                return
            kept = (folder / CHECKPOINTS).glob("step-*")
            names = [path.name.removeprefix("step-") for path in kept]
            step = max((int(name) for name in names if name.isdecimal()), default=0)
            run, far = "pretraining", f"the model after step {step:,} of {steps:,}"
        case _:
            return
    say(
        f"warning: {folder}: its {run} has not ended: this is {far}; "
        + spoken(f"the same {run} goes on with --resume")
    )


def _last(folder: Path, counted: str, beside: str) -> int:
    """The last epoch or step that the journal has such a record of; 0 where there is none."""
    records = _records(folder / JOURNAL, f'"{beside}"'.encode())
    numbers = (record.get(counted) for record in records)
    return max((number for number in numbers if isinstance(number, int)), default=0)


def _records(path: Path, having: bytes = b"") -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of the lines that contain `having`, or the one of the whole file.

    A file that does not exist has none.

    Raises:
        CheckpointError: If the path is not a regular file, or too large.
    """
    if not path.exists():  # also if the model is a file, as in .gguf
        return
    content = read_bytes(path, CheckpointError, most=MAX_JOURNAL_BYTES)
    for line in content.splitlines() if having else [content]:
        if having in line:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # cut by a kill
                continue
            if isinstance(record, dict):
                yield record
