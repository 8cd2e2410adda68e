"""Settings and loss curves of active and finished training runs."""

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
"""Name of the loss curve in a run directory."""

MAX_POINTS = 400
"""Maximum number of points of a curve. Longer curves are thinned."""

STOPPED_SECONDS = 600
"""A run counts as stopped if its journal has no new line for this number of seconds."""


NAMED = ("held_out", "scores")
"""Keys of a journal record whose value is a dict of numbers."""

HASH = re.compile(r"^(corpus|tokenizer|draws)$|sha256$|^data\..*(held_out|rows)")
"""Matches the names of values that are hashes, or that repeat other values."""


class Config(msgspec.Struct):
    """Type that the settings of a run must have."""

    train: dict[str, Any] = {}


class RunRecord(msgspec.Struct):
    """Types that some values in `run.json` must have. The file contains more keys."""

    config: Config = msgspec.field(default_factory=Config)
    corpus_folder: str = ""


@dataclass(frozen=True)
class RunView:
    """Current content of a run directory."""

    name: str
    record: Mapping[str, Any]
    """Content of `run.json`."""
    lines: Sequence[Mapping[str, Any]]
    """Records of the journal."""
    age: float
    """Number of seconds since the last record was written."""
    damaged: Sequence[str] = ()
    """Message for each file that is partly invalid."""

    has_scores: bool = False
    """Whether the final scores of a fine-tuning run exist."""

    @property
    def steps(self) -> int | None:
        """Total number of steps, or None if it is unknown, as in fine-tuning."""
        steps = self.record.get("config", {}).get("train", {}).get("steps")
        return steps if type(steps) is int and 0 < steps <= MAX_VALUE else None

    @property
    def step(self) -> int:
        """Number of the step of the last record."""
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def finished(self) -> bool:
        """Whether the run has completed all steps."""
        return self.has_scores or self.step == self.steps

    @property
    def learns(self) -> bool:
        """Whether the run is still active, so that more records are expected."""
        return self.age < STOPPED_SECONDS and not self.finished


def read_run(folder: Path, name: str | None = None) -> RunView:
    """Read a run directory.

    Args:
        folder: The directory.
        name: Name of the run. Default: the name of the directory.

    Raises:
        CheckpointError: If the directory does not contain a run.
    """
    try:
        written = read_bytes(folder / RUN, CheckpointError)
        age = time.time() - (folder / JOURNAL).stat().st_mtime
    except OSError:
        raise CheckpointError(
            f"{folder}: not a run directory; pass --out of `bertkit pretrain` or `bertkit finetune`"
        ) from None
    damaged = []
    try:
        record = json.loads(written.decode("utf-8"))
        msgspec.convert(record, RunRecord)
    except (ValueError, RecursionError, msgspec.ValidationError):
        record = {}
        damaged.append(f"{folder / RUN}: invalid; the settings of the run are not shown")
    lines, damaged_lines = Journal(folder).read()
    if damaged_lines:
        damaged.append(skipped_lines(folder / JOURNAL, damaged_lines))
    numbers = [line[key] for line in lines for key in ("loss", "learning_rate") if key in line]
    numbers += [v for line in lines for key in NAMED for v in line.get(key, {}).values()]
    if not all(map(is_plottable, numbers)):
        damaged.append(f"{folder / JOURNAL}: values that are nan or too large are not drawn")
    has_scores = (folder / SCORES).exists()
    return RunView(name or folder.name or str(folder), record, lines, age, damaged, has_scores)


def different_settings(records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the settings that differ between runs, with their values in each run.

    A missing value is "". If the models have different architectures, settings of the models are
    omitted, because they have few settings in common.
    """
    runs = [
        {path.removeprefix("config.").removeprefix("settings."): v for path, v in flat(run).items()}
        for run in map(_replace_data, records)
    ]
    paths = dict.fromkeys(path for run in runs for path in run if not HASH.search(path))
    groups = [{path.split(".")[1] for path in run if path.startswith("model.")} for run in runs]
    if any(group != groups[0] for group in groups):
        paths = {path: None for path in paths if not path.startswith(("model.", "decoder."))}
    values = {path: [_to_text(run.get(path)) for run in runs] for path in paths}
    return {path: row for path, row in values.items() if len(set(row)) > 1}


def _replace_data(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the record of each data set by a description of where its rows come from."""
    data = record.get("data")
    if not isinstance(data, Mapping):
        return record
    return {**record, "data": {name: _source(rows) for name, rows in data.items()}}


def _source(record: Any) -> Any:
    match record:
        case {"held_out": {"from": "train", "share": int() | float() as share}}:
            return f"{100 * share:g}% of {record.get('file') or 'rows in memory'}"
        case {"file": str(file)}:
            return file
        case {"file": None, "rows": int(rows)}:
            return f"{rows:,} rows in memory"
    return record


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Find run directories. In a directory that is not a run, search up to three levels deep.

    Args:
        folders: The directories.
    """
    runs: list[Path] = []
    for folder in folders:
        nested = {
            file.parent for depth in ("*", "*/*", "*/*/*") for file in folder.glob(f"{depth}/{RUN}")
        }
        is_run = (folder / RUN).exists() or not nested
        runs += [folder] if is_run else sorted(nested - {run.parent for run in nested})
    return list(dict.fromkeys(runs))


def contains_runs(folder: Path) -> bool:
    """Return whether a directory is a run directory or contains run directories."""
    return (folder / RUN).exists() or find_runs([folder]) != [folder]


def loss_curve(folder: Path) -> Markup:
    """Draw the training loss and the held-out loss of a run, each summed over the objectives."""
    records = Journal(folder).records()
    training = [(r["step"], r["loss"]) for r in records if is_plottable(r.get("loss"))]
    held_out = [(r["step"], sum(r["held_out"].values())) for r in records if "held_out" in r]
    held_out = [point for point in held_out if is_plottable(point[1])]
    lines = {"training": training, "held out": held_out}
    return curves(lines, x="step", y="loss", dotted=["held out"])


def draw(folder: Path) -> Path:
    """Write the loss curve of a run as `loss.svg`, and return its path."""
    write_svg(folder / LOSS_CURVE_FILE, loss_curve(folder))
    return folder / LOSS_CURVE_FILE


def thin(line: Sequence[Point]) -> list[Point]:
    """Thin a line to about `MAX_POINTS` points. The last point is kept."""
    step = max(1, -(-len(line) // MAX_POINTS))
    return [*line[:-1][::step], *line[-1:]]


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)
