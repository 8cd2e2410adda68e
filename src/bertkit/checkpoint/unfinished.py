"""Whether a folder's model is one that a fine-tuning has not finished."""

from __future__ import annotations

import json
from pathlib import Path

from bertkit.console import say
from bertkit.errors import spoken

RUN, JOURNAL, SCORES = "run.json", "journal.jsonl", "scores.json"
"""Of a run's folder; the last is written when all epochs are done."""


def say_unfinished(folder: Path) -> None:
    """Say that a folder's model is the best of the first epochs alone, and how to go on."""
    if (folder / SCORES).exists() or (epochs := _asked(folder)) is None:
        return
    if not (scored := _scored(folder)):  # no model yet, of which `load` says so
        return
    say(
        f"warning: {folder}: its fine-tuning has not ended: this is the best model after epoch "
        f"{scored} of {epochs}; " + spoken("the same fine-tuning goes on with --resume")
    )


def _asked(folder: Path) -> int | None:
    """The epochs that a fine-tuning was asked for; None of another folder, or a damaged record."""
    try:
        record = json.loads((folder / RUN).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    match record:
        case {"settings": {"epochs": int(epochs)}, "data": {"dev": _}}:
            return epochs
    return None


def _scored(folder: Path) -> int:
    """The last epoch that the journal has scores of."""
    last = 0
    try:
        lines = (folder / JOURNAL).read_bytes().splitlines()
    except OSError:
        return last
    for line in lines:
        if b'"scores"' in line:  # most lines are of steps
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # cut by a kill
                continue
            match record:
                case {"epoch": int(epoch)}:
                    last = max(last, epoch)
    return last
