"""Runs that learn, or have learned: their settings and curves, side by side."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from bertkit.checkpoint.run_directory import JOURNAL, RUN, SCORES
from bertkit.config import flat
from bertkit.errors import CheckpointError
from bertkit.storage import read_bytes
from bertkit.training.journal import MAX_VALUE, Journal, is_plottable, skipped_lines
from bertkit.view.chart import Point, curves, write_svg

LOSS_CURVE_FILE = "loss.svg"
"""The loss curve in a run's folder."""

MAX_POINTS = 400
"""Points of a curve; of more every so many are drawn."""

STOPPED_SECONDS = 600
"""Seconds without a new line after which a run counts as stopped."""


NAMED = ("held_out", "scores")
"""Of a record: numbers with names."""

HASH = re.compile(r"^(corpus|tokenizer|draws)$|sha256$|^data\..*(held_out|rows)")
"""Settings that tell people nothing, or what others say."""


class Config(msgspec.Struct):
    """What `train` of a run file has to be."""

    train: dict[str, Any] = {}


class RunRecord(msgspec.Struct):
    """What `run.json` has to be; it says more."""

    config: Config = msgspec.field(default_factory=Config)
    corpus_folder: str = ""


@dataclass(frozen=True)
class RunView:
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

    has_scores: bool = False
    """Whether the final scores of a fine-tuning are written."""

    @property
    def steps(self) -> int | None:
        """Of the whole run, where that is known: of pretraining."""
        steps = self.record.get("config", {}).get("train", {}).get("steps")
        return steps if type(steps) is int and 0 < steps <= MAX_VALUE else None

    @property
    def step(self) -> int:
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def finished(self) -> bool:
        """Whether the run has taken all its steps."""
        return self.has_scores or self.step == self.steps

    @property
    def learns(self) -> bool:
        """Whether more records are expected."""
        return self.age < STOPPED_SECONDS and not self.finished


def read_run(folder: Path, name: str | None = None) -> RunView:
    """A run's folder, called by its own name if no other is given.

    Raises: CheckpointError for a folder that no run has written to.
    """
    try:
        written = read_bytes(folder / RUN, CheckpointError)
        age = time.time() - (folder / JOURNAL).stat().st_mtime
    except OSError:
        raise CheckpointError(
            f"{folder}: no run learns here; name the --out of `bertkit pretrain` or `finetune`"
        ) from None
    damaged = []
    try:
        record = json.loads(written.decode("utf-8"))
        msgspec.convert(record, RunRecord)
    except (ValueError, RecursionError, msgspec.ValidationError):
        record = {}
        damaged.append(f"{folder / RUN}: damaged; what the run was asked to do is not shown")
    lines, damaged_lines = Journal(folder).read()
    if damaged_lines:
        damaged.append(skipped_lines(folder / JOURNAL, damaged_lines))
    numbers = [line[key] for line in lines for key in ("loss", "learning_rate") if key in line]
    numbers += [v for line in lines for key in NAMED for v in line.get(key, {}).values()]
    if not all(map(is_plottable, numbers)):
        damaged.append(
            f"{folder / JOURNAL}: numbers that are none (nan, or too large) are not drawn"
        )
    has_scores = (folder / SCORES).exists()
    return RunView(name or folder.name or str(folder), record, lines, age, damaged, has_scores)


def different_settings(records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the values of each setting that differs between runs; "" for missing values.

    Models of different architectures have few settings in common. Their settings are omitted.
    """
    flats = [
        {path.removeprefix("config.").removeprefix("settings."): v for path, v in flat(one).items()}
        for one in map(_with_sources, records)
    ]
    paths = dict.fromkeys(path for one in flats for path in one if not HASH.search(path))
    groups = [{path.split(".")[1] for path in one if path.startswith("model.")} for one in flats]
    if any(group != groups[0] for group in groups):
        paths = {path: None for path in paths if not path.startswith(("model.", "decoder."))}
    values = {path: [_words(one.get(path)) for one in flats] for path in paths}
    return {path: row for path, row in values.items() if len(set(row)) > 1}


def _with_sources(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with a word on where its rows are from in place of all that is known of them."""
    data = record.get("data")
    if not isinstance(data, Mapping):
        return record
    return {**record, "data": {name: _source(about) for name, about in data.items()}}


def _source(about: Any) -> Any:
    match about:
        case {"held_out": {"from": "train", "share": int() | float() as share}}:
            return f"{100 * share:g} % of {about.get('file') or 'rows in memory'}"
        case {"file": str(file)}:
            return file
        case {"file": None, "rows": int(rows)}:
            return f"{rows:,} rows in memory"
    return about


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the run directories among these, and those up to three levels below the others."""
    runs: list[Path] = []
    for folder in folders:
        inside = {
            place.parent
            for depth in ("*", "*/*", "*/*/*")
            for place in folder.glob(f"{depth}/{RUN}")
        }
        alone = (folder / RUN).exists() or not inside
        runs += [folder] if alone else sorted(inside - {run.parent for run in inside})
    return list(dict.fromkeys(runs))


def holds_runs(folder: Path) -> bool:
    """Whether it is the folder of a run, or of runs."""
    return (folder / RUN).exists() or find_runs([folder]) != [folder]


def loss_curve(folder: Path) -> Markup:
    """The loss of a run, training and held-out, summed over its objectives."""
    records = Journal(folder).records()
    trained = [(r["step"], r["loss"]) for r in records if is_plottable(r.get("loss"))]
    held_out = [(r["step"], sum(r["held_out"].values())) for r in records if "held_out" in r]
    sound = [point for point in held_out if is_plottable(point[1])]
    return curves({"training": trained, "held out": sound}, x="step", y="loss", dotted=["held out"])


def draw(folder: Path) -> Path:
    """Write the loss curve of a run as `loss.svg`."""
    write_svg(folder / LOSS_CURVE_FILE, loss_curve(folder))
    return folder / LOSS_CURVE_FILE


def thin(line: Sequence[Point]) -> list[Point]:
    """At most `MAX_POINTS` points of it, the last among them."""
    every = max(1, -(-len(line) // MAX_POINTS))
    return [*line[:-1][::every], *line[-1:]]


def _words(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
