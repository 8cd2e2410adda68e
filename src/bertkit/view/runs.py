"""Runs that learn, or have learned: their settings and curves, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from bertkit.errors import CheckpointError
from bertkit.training.journal import FILE, LARGEST, RUN, Journal, drawable, left_out
from bertkit.view.answers import figure, table
from bertkit.view.chart import Point, curves

MOST = 400
"""Points of a curve; of more every so many are drawn."""

QUIET = 600
"""Seconds without a new line after which a run counts as stopped."""


NAMED = ("held_out", "scores")
"""Of a record: numbers with names."""


class Asked(msgspec.Struct):
    """What `train` of a run file has to be."""

    train: dict[str, Any] = {}


class Record(msgspec.Struct):
    """What `run.json` has to be; it says more."""

    config: Asked = msgspec.field(default_factory=Asked)
    corpus_folder: str = ""


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
    damaged: Sequence[str] = ()
    """A sentence on each file of it that is damaged; what is sound of it is shown."""

    @property
    def steps(self) -> int | None:
        """Of the whole run, where that is known: of pretraining."""
        found = self.record.get("config", {}).get("train", {}).get("steps")
        return found if type(found) is int and 0 < found <= LARGEST else None

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
        written = (folder / RUN).read_bytes()
        age = time.time() - (folder / FILE).stat().st_mtime
    except OSError:
        raise CheckpointError(
            f"{folder}: no run learns here; name the --out of `bertkit pretrain` or `finetune`"
        ) from None
    damaged = []
    try:
        record = json.loads(written.decode("utf-8"))
        msgspec.convert(record, Record)
    except (ValueError, RecursionError, msgspec.ValidationError):
        record = {}
        damaged.append(f"{folder / RUN}: damaged; what the run was asked to do is not shown")
    lines, none = Journal(folder).read()
    if none:
        damaged.append(left_out(folder / FILE, none))
    numbers = [line[key] for line in lines for key in ("loss", "learning_rate") if key in line]
    numbers += [v for line in lines for key in NAMED for v in line.get(key, {}).values()]
    if not all(map(drawable, numbers)):
        damaged.append(f"{folder / FILE}: numbers that are none (nan, or too large) are not drawn")
    return Run(folder.name or str(folder), record, lines, age, damaged)


def shown(runs: Sequence[Run]) -> str:
    """Their curves, and how far each is, as HTML."""
    rows = [[escape(run.name), f"{run.step:,}{_of(run)}", _state(run), *_last(run)] for run in runs]
    names = ["run", "step", "state", "loss", "held out, or scored"]
    found = [f'<p role="alert">{escape(said)}</p>' for run in runs for said in run.damaged]
    found += [figure("Runs", "How far each is.", table("Runs", names, rows))]
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
    return _one(run, "loss")


def _held_out(run: Run) -> dict[str, list[Point]]:
    return _named(run, "held_out")


def _scores(run: Run) -> dict[str, list[Point]]:
    return _named(run, "scores")


def _rate(run: Run) -> dict[str, list[Point]]:
    return _one(run, "learning_rate")


def _one(run: Run, key: str) -> dict[str, list[Point]]:
    """The line of a number that records have under `key`."""
    return {"": [(line["step"], line[key]) for line in run.lines if drawable(line.get(key))]}


def _named(run: Run, key: str) -> dict[str, list[Point]]:
    """A line for each of the numbers that a record has under `key`."""
    found: dict[str, list[Point]] = {}
    for line in run.lines:
        for name, value in line.get(key, {}).items():
            if drawable(value):
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
