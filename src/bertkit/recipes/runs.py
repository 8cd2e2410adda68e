"""Tables and charts that compare runs by their settings, time and scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from bertkit.checkpoint.run_directory import SCORES
from bertkit.config import flat
from bertkit.metrics import mean_and_sd, plus_minus
from bertkit.recipes.final_test import read_test
from bertkit.storage import check_unused, csv_line, distinct_names, write_text
from bertkit.training.epochs import read_scores
from bertkit.training.journal import is_plottable
from bertkit.view.chart import Point, curves, write_svg
from bertkit.view.runs import RunView, different_settings, find_runs, read_run, thin

SEED_DIRECTORY = re.compile(r"seed-\d+")
"""Matches the name of a run directory such as seed-0. It is used if runs differ only by seed."""

SEED_SETTING = "seed"
"""Last part of the name of the setting in which runs with different seeds differ."""


def runs(
    folders: list[str],
    /,
    *,
    format: Literal["markdown", "csv", "latex"] = "markdown",
    out: Path | None = None,
    plot: Path | None = None,
) -> str | None:
    """Compare runs in a table: settings, steps, tokens, time and scores.

    Runs that differ only by their seed share a row, which contains means and standard deviations.
    The table contains the dev scores of the best epoch (fine-tuning) or the last scores on held-out
    text (pretraining), and the test scores. If fine-tuning and pretraining runs are compared with
    each other, the table contains no settings.

    Args:
        folders: Run directories, or directories that contain runs.
        format: Table format.
        out: Output path of the table. Must not exist. Default: print the table.
        plot: Output path of an .svg chart of the first score that all runs have. If there is no
            such score, it shows the loss. Must not exist.

    Returns:
        The table, unless `out` is set.

    Raises:
        CheckpointError: If a directory contains no run.
        ConfigError: If an output file exists.
    """
    for file, option in ((out, "--out"), (plot, "--plot")):
        if file is not None:
            check_unused(file, option=option)
    paths = [Path(folder) for folder in folders]
    table = FORMATS[format](*table_of_runs(paths, exact=format == "csv"))
    if plot is not None:
        write_svg(plot, _plot([run for _, run in _read_runs(paths)]))
    if out is None:
        return table
    write_text(out, table + "\n")
    return None


def table_of_runs(
    folders: Sequence[Path], *, exact: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and the rows. Runs that differ only by seed share a row.

    Args:
        folders: Run directories, or directories that contain runs.
        exact: Whether to show numbers with full precision, and standard deviations in separate
            columns.

    Raises:
        CheckpointError: If a directory contains no run.
    """
    views = _read_runs(folders)
    rows = _rows([run for _, run in views], [_scores(path, run) for path, run in views])
    return _table(rows, exact=exact)


def _read_runs(folders: Sequence[Path]) -> list[tuple[Path, RunView]]:
    """Return the path and the content of all runs in the directories."""
    paths = find_runs(folders)
    names = _names(paths)
    return [(path, read_run(path, name)) for path, name in zip(paths, names, strict=True)]


@dataclass(frozen=True)
class _Row:
    """Row of the table: one run, or several runs that differ only by seed, with their scores."""

    runs: list[RunView]
    scores: list[Mapping[str, float]]

    @property
    def name(self) -> str:
        if len(self.runs) == 1:
            return self.runs[0].name
        names = dict.fromkeys(run.name.partition("/seed-")[0] for run in self.runs)
        return f"{', '.join(names)} ({len(self.runs)} seeds)"

    def mean(self, of: Callable[[RunView], float | None], form: Callable[[float], str]) -> str:
        """Return the formatted mean of a value over the runs, or "" if a run does not have it."""
        values = [value for run in self.runs if (value := of(run)) is not None]
        return form(sum(values) / len(values)) if len(values) == len(self.runs) else ""

    def score(self, name: str) -> dict[str, Any] | None:
        values = [scores[name] for scores in self.scores if name in scores]
        return mean_and_sd(values) if values else None


def _names(paths: Sequence[Path]) -> list[str]:
    """Return names that distinguish the runs. A name such as seed-1 follows its parent's name."""
    parents = [path.parent if SEED_DIRECTORY.fullmatch(path.name) else path for path in paths]
    unique = list(dict.fromkeys(parents))
    names = dict(zip(unique, distinct_names(unique), strict=True))
    return [
        names[run] if run == path else f"{names[run]}/{path.name}"
        for run, path in zip(parents, paths, strict=True)
    ]


def _rows(views: Sequence[RunView], scores: Sequence[Mapping[str, float]]) -> list[_Row]:
    """Group the runs that differ only by their seed."""
    rows: dict[str, _Row] = {}
    for run, run_scores in zip(views, scores, strict=True):
        record = flat(run.record)
        same = {path: v for path, v in record.items() if path.rpartition(".")[2] != SEED_SETTING}
        row = rows.setdefault(repr(sorted(same.items())) if record else run.name, _Row([], []))
        row.runs.append(run)
        row.scores.append(run_scores)
    return list(rows.values())


def _scores(folder: Path, run: RunView) -> dict[str, float]:
    """Return the scores of the best epoch or the last held-out scores, and the test scores."""
    test = read_test(folder)
    if (folder / SCORES).exists():
        scores = {**read_scores(folder / SCORES)["dev"], **test}
        return {name: value for name, value in scores.items() if name != "epoch"}
    for line in reversed(run.lines):
        if held_out := line.get("held_out"):
            losses = {f"{name}_loss": loss for name, loss in held_out.items()}
            accuracy = line.get("held_out_accuracy", {})
            return losses | {f"{n}_accuracy": value for n, value in accuracy.items()} | test
    return test


def _table(rows: Sequence[_Row], *, exact: bool) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns that are not empty, and the rows.

    If `exact` is set, values have full precision, and standard deviations have separate columns.
    """
    columns = {"run": [row.name for row in rows]}
    records = [row.runs[0].record for row in rows]
    kinds = {"config" in record for record in records if record}
    # Fine-tuning and pretraining runs have nearly no settings in common.
    different = different_settings(records) if len(kinds) == 1 else {}
    columns |= {
        path: cells for path, cells in different.items() if path.rpartition(".")[2] != SEED_SETTING
    }
    count = "{:.0f}".format if exact else "{:,.0f}".format
    minutes = "{:.4f}".format if exact else "{:.1f}".format
    columns["steps"] = [row.mean(lambda run: run.step, count) for row in rows]
    columns["tokens"] = [row.mean(_tokens, count) for row in rows]
    columns["minutes"] = [row.mean(_seconds, lambda s: minutes(s / 60)) for row in rows]
    for name in dict.fromkeys(name for row in rows for scores in row.scores for name in scores):
        scores = [row.score(name) for row in rows]
        if exact:
            columns[name] = [f"{score['mean']:.6g}" if score else "" for score in scores]
            columns[f"{name}_sd"] = [
                f"{score['sd']:.6g}" if score and score["sd"] else "" for score in scores
            ]
        else:
            columns[name] = [plus_minus(score) if score else "" for score in scores]
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


def _steps(run: RunView) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the records that contain a speed, each with the number of steps that it stands for."""
    names = ("tokens", "tokens_per_second", "data_wait")
    lines = [line for line in run.lines if all(is_plottable(line.get(name)) for name in names)]
    numbers = [0, *(line["step"] for line in lines)]
    return [(b - a, line) for (a, b), line in zip(pairwise(numbers), lines, strict=True)]


def _tokens(run: RunView) -> float | None:
    steps = _steps(run)
    return sum(count * line["tokens"] for count, line in steps) if steps else None


def _seconds(run: RunView) -> float | None:
    """Return the time that the training steps took, without the time of evaluation and saving."""
    steps = [(count, line) for count, line in _steps(run) if line["tokens_per_second"]]
    seconds = [
        n * (line["tokens"] / line["tokens_per_second"] + line["data_wait"]) for n, line in steps
    ]
    return sum(seconds) if seconds else None


def _plot(views: Sequence[RunView]) -> Any:
    """Return a chart of the first score that all runs have, or else of the loss, over the steps."""
    charts: list[dict[str, list[Point]]] = []
    for run in views:
        lines: dict[str, list[Point]] = {}
        for line in run.lines:
            for name, value in {**line.get("held_out", {}), **line.get("scores", {})}.items():
                lines.setdefault(name, []).append((line["step"], value))
        charts.append(lines)
    shared = [name for name in charts[0] if all(name in chart for chart in charts)]
    if shared:
        scored = {run.name: chart[shared[0]] for run, chart in zip(views, charts, strict=True)}
        return curves(scored, x="step", y=shared[0])
    losses = {
        run.name: thin(
            [(line["step"], line["loss"]) for line in run.lines if is_plottable(line.get("loss"))]
        )
        for run in views
    }
    return curves(losses, x="step", y="loss")


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (names, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _csv(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(map(csv_line, (names, *rows))).rstrip("\n")


def _latex(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a LaTeX tabular environment, whose horizontal rules require the package booktabs."""
    lines = [" & ".join(t.translate(LATEX) for t in row) + r" \\" for row in (names, *rows)]
    begin = rf"\begin{{tabular}}{{{'l' * len(names)}}}"
    return "\n".join(
        [begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"]
    )


LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)


FORMATS = {"markdown": _markdown, "csv": _csv, "latex": _latex}
