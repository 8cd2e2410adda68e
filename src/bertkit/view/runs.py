"""Runs that learn, or have learned: their settings and curves, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from bertkit.errors import CheckpointError
from bertkit.training.journal import FILE, LARGEST, RUN, Journal, drawable, left_out
from bertkit.view.chart import Point, curves, write_svg
from bertkit.view.figures import Figure, Lines, Table

PICTURE = "loss.svg"
"""The loss curve in a run's folder."""

MOST = 400
"""Points of a curve; of more every so many are drawn."""

QUIET = 600
"""Seconds without a new line after which a run counts as stopped."""


NAMED = ("held_out", "scores")
"""Of a record: numbers with names."""


class Config(msgspec.Struct):
    """What `train` of a run file has to be."""

    train: dict[str, Any] = {}


class Record(msgspec.Struct):
    """What `run.json` has to be; it says more."""

    config: Config = msgspec.field(default_factory=Config)
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
        steps = self.record.get("config", {}).get("train", {}).get("steps")
        return steps if type(steps) is int and 0 < steps <= LARGEST else None

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
    lines, damaged_lines = Journal(folder).read()
    if damaged_lines:
        damaged.append(left_out(folder / FILE, damaged_lines))
    numbers = [line[key] for line in lines for key in ("loss", "learning_rate") if key in line]
    numbers += [v for line in lines for key in NAMED for v in line.get(key, {}).values()]
    if not all(map(drawable, numbers)):
        damaged.append(f"{folder / FILE}: numbers that are none (nan, or too large) are not drawn")
    return Run(folder.name or str(folder), record, lines, age, damaged)


def run_figures(runs: Sequence[Run]) -> list[Figure]:
    """How far each run is, and their curves."""
    rows = [(run.name, f"{run.step:,}{_of(run)}", _state(run), *_last(run)) for run in runs]
    names = ("run", "step", "state", "loss", "held out, or scored")
    figures = [Figure("Runs", "How far each is.", [Table("Runs", rows, names)])]
    for title, y, caption, points in PICTURES:
        lines = {
            f"{run.name}{name}": thin(line)
            for run in runs
            for name, line in points(run).items()
            if len(line) > 1
        }
        if lines:
            figures.append(Figure(title, caption, [curves(lines, x="step", y=y)]))
    return figures


def samples_figure(run: Run, samples: Sequence[str]) -> Figure:
    """What the run learns from."""
    caption = "The first samples: masked is [MASK]←word, replaced other←word, kept word←=."
    return Figure(f"Samples of {run.name}", caption, [Lines("\n".join(samples))])


def loss_curve(folder: Path) -> Markup:
    """The loss of a run, training and held-out, summed over its objectives."""
    records = Journal(folder).records()
    trained = [(r["step"], r["loss"]) for r in records if drawable(r.get("loss"))]
    held_out = [(r["step"], sum(r["held_out"].values())) for r in records if "held_out" in r]
    sound = [point for point in held_out if drawable(point[1])]
    return curves({"training": trained, "held out": sound}, x="step", y="loss", dotted=["held out"])


def draw(folder: Path) -> Path:
    """Write the loss curve of a run as `loss.svg`."""
    write_svg(folder / PICTURE, loss_curve(folder))
    return folder / PICTURE


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
    lines: dict[str, list[Point]] = {}
    for line in run.lines:
        for name, value in line.get(key, {}).items():
            if drawable(value):
                lines.setdefault(f" {name}", []).append((line["step"], value))
    return lines


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


def _last(run: Run) -> tuple[str, str]:
    """The last loss, and the last of what was measured beside it."""
    loss = next((f"{line['loss']:.3f}" for line in reversed(run.lines) if "loss" in line), "")
    for line in reversed(run.lines):
        scores = line.get("held_out") or line.get("scores")
        if scores:
            return loss, ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
    return loss, ""
