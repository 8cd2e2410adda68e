"""Runs that learn, or have learned: their settings and curves, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bertkit.errors import CheckpointError
from bertkit.training.journal import FILE, RUN, Journal
from bertkit.view.answers import figure, table
from bertkit.view.chart import Point, curves

MOST = 400
"""Points of a curve; of more every so many are drawn."""

QUIET = 600
"""Seconds without a new line after which a run counts as stopped."""


@dataclass(frozen=True)
class Run:
    """A run's folder as it is now."""

    name: str
    record: Mapping[str, Any]
    """What `run.json` says."""
    lines: Sequence[Mapping[str, Any]]
    """Of the journal."""
    age: float
    """Seconds since the last of them."""

    @property
    def steps(self) -> int | None:
        """Of the whole run, where that is known: of pretraining."""
        found = self.record.get("config", {}).get("train", {}).get("steps")
        return found if isinstance(found, int) else None

    @property
    def step(self) -> int:
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def learns(self) -> bool:
        """Whether there is more to come."""
        return self.age < QUIET and self.step != self.steps


def read_run(folder: Path) -> Run:
    """Raises: CheckpointError for a folder that no run has written to."""
    try:
        record = json.loads((folder / RUN).read_text(encoding="utf-8"))
        age = time.time() - (folder / FILE).stat().st_mtime
    except (OSError, ValueError):
        raise CheckpointError(
            f"{folder}: no run learns here; name the --out of `bertkit pretrain` or `finetune`"
        ) from None
    lines = [line for line in Journal(folder).records() if isinstance(line.get("step"), int)]
    return Run(folder.name or str(folder), record, lines, age)


def shown(runs: Sequence[Run]) -> str:
    """Their curves, and how far each is, as HTML."""
    rows = [[escape(run.name), f"{run.step:,}{_of(run)}", _state(run), *_last(run)] for run in runs]
    names = ["run", "step", "state", "loss", "held out, or scored"]
    found = [figure("Runs", "How far each is.", table("Runs", names, rows))]
    for title, y, caption, points in PICTURES:
        lines = {
            f"{run.name}{name}": thin(line)
            for run in runs
            for name, line in points(run).items()
            if len(line) > 1
        }
        if lines:
            found.append(figure(title, caption, curves(lines, x="step", y=y)))
    return "".join(found)


def with_samples(run: Run, samples: Sequence[str]) -> str:
    """What the run learns from, as HTML."""
    if not samples:
        return ""
    said = "The first samples: masked is [MASK]←word, replaced other←word, kept word←=."
    return figure(f"Samples of {run.name}", said, f"<pre>{escape(chr(10).join(samples))}</pre>")


def thin(line: Sequence[Point]) -> list[Point]:
    """At most `MOST` points of it, the last among them."""
    every = -(-len(line) // MOST)
    return [*line[:-1][::every], *line[-1:]]


def _loss(run: Run) -> dict[str, list[Point]]:
    return {"": [(line["step"], line["loss"]) for line in run.lines if "loss" in line]}


def _held_out(run: Run) -> dict[str, list[Point]]:
    return _named(run, "held_out")


def _scores(run: Run) -> dict[str, list[Point]]:
    return _named(run, "scores")


def _rate(run: Run) -> dict[str, list[Point]]:
    key = "learning_rate"
    return {"": [(line["step"], line[key]) for line in run.lines if key in line]}


def _named(run: Run, key: str) -> dict[str, list[Point]]:
    """A line for each of the numbers that a record has under `key`."""
    found: dict[str, list[Point]] = {}
    for line in run.lines:
        for name, value in line.get(key, {}).items():
            found.setdefault(f" {name}", []).append((line["step"], value))
    return found


PICTURES: tuple[tuple[str, str, str, Callable[[Run], dict[str, list[Point]]]], ...] = (
    ("Loss", "loss", "Of the samples that are learned from.", _loss),
    (
        "Held out",
        "loss",
        "Of documents that are never learned from, with their own masks.",
        _held_out,
    ),
    ("Scores", "score", "On dev, after each epoch.", _scores),
    ("Learning rate", "learning rate", "Of the step.", _rate),
)


def _of(run: Run) -> str:
    return f" of {run.steps:,}" if run.steps else ""


def _state(run: Run) -> str:
    return "learns" if run.learns else "done" if run.step == run.steps else "stopped, or done"


def _last(run: Run) -> list[str]:
    """The last loss, and the last of what was measured beside it."""
    loss = next((f"{line['loss']:.3f}" for line in reversed(run.lines) if "loss" in line), "")
    for line in reversed(run.lines):
        found = line.get("held_out") or line.get("scores")
        if found:
            said = ", ".join(f"{escape(name)} {value:.3f}" for name, value in found.items())
            return [loss, said]
    return [loss, ""]
