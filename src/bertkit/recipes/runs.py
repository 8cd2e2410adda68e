"""Runs side by side: what they were asked to do differently, what it took, how well they did."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from bertkit.checkpoint.run_directory import SCORES
from bertkit.config import flat
from bertkit.metrics import plus_minus, spread
from bertkit.recipes.final_test import read_test
from bertkit.storage import csv_line, distinct_names, refuse_used, write_text
from bertkit.training.epochs import read_scores
from bertkit.training.journal import is_plottable
from bertkit.view.chart import Point, curves, write_svg
from bertkit.view.runs import RunView, different_settings, find_runs, read_run, thin

SEED_DIRECTORY = re.compile(r"seed-\d+")
"""Name of the directory of one of several runs that differ by seed."""

SEED_SETTING = "seed"
"""The last part of the name of the setting by which repetitions differ."""


def runs(
    folders: list[str],
    /,
    *,
    format: Literal["markdown", "csv", "latex"] = "markdown",
    out: Path | None = None,
    picture: Path | None = None,
) -> str | None:
    """Compare runs in a table: settings, steps, tokens, time and scores.

    Runs that differ only by their seed are one row, with means and standard deviations. Scores are
    those of the best epoch on dev or the last scores on held-out text, and those on the test set.
    The settings of fine-tuning runs are not compared with those of pretraining runs.

    Args:
        folders: Run directories, or directories that contain runs.
        format: Table format.
        out: A file for the table; else it is printed.
        picture: A file (.svg) for the curves of what was scored, or of the loss.

    Returns:
        The table, if there is no `out`.

    Raises:
        CheckpointError: If a directory contains no run.
        ConfigError: If a file exists.
    """
    for file, option in ((out, "--out"), (picture, "--picture")):
        if file is not None:
            refuse_used(file, option=option)
    paths = [Path(folder) for folder in folders]
    table = FORMATS[format](*table_of_runs(paths, exact=format == "csv"))
    if picture is not None:
        write_svg(picture, _picture([run for _, run in _read_runs(paths)]))
    if out is None:
        return table
    write_text(out, table + "\n")
    return None


def table_of_runs(
    folders: Sequence[Path], *, exact: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and a row for each run or for runs that differ by seed.

    Args:
        folders: Run directories, or directories that contain runs.
        exact: Whether numbers have full precision, and standard deviations their own columns.

    Raises:
        CheckpointError: If a directory contains no run.
    """
    opened = _read_runs(folders)
    rows = _rows([run for _, run in opened], [_scores(path, run) for path, run in opened])
    return _table(rows, exact=exact)


def _read_runs(folders: Sequence[Path]) -> list[tuple[Path, RunView]]:
    """Return the runs in directories, each with its path."""
    paths = find_runs(folders)
    names = _names(paths)
    return [(path, read_run(path, name)) for path, name in zip(paths, names, strict=True)]


@dataclass(frozen=True)
class _Row:
    """Runs that repeat each other, of which each has scores."""

    runs: list[RunView]
    scores: list[Mapping[str, float]]

    @property
    def name(self) -> str:
        if len(self.runs) == 1:
            return self.runs[0].name
        names = dict.fromkeys(run.name.partition("/seed-")[0] for run in self.runs)
        return f"{', '.join(names)} ({len(self.runs)} seeds)"

    def mean(self, of: Callable[[RunView], float | None], form: Callable[[float], str]) -> str:
        """Of what these runs took; "" where it is not known of all."""
        numbers = [number for run in self.runs if (number := of(run)) is not None]
        return form(sum(numbers) / len(numbers)) if len(numbers) == len(self.runs) else ""

    def score(self, name: str) -> dict[str, Any] | None:
        each = [scores[name] for scores in self.scores if name in scores]
        return spread(each) if each else None


def _names(paths: Sequence[Path]) -> list[str]:
    """Return names that distinguish the runs; the name of a seed follows that of its directory."""
    whole = [path.parent if SEED_DIRECTORY.fullmatch(path.name) else path for path in paths]
    unique = list(dict.fromkeys(whole))
    names = dict(zip(unique, distinct_names(unique), strict=True))
    return [
        names[run] if run == path else f"{names[run]}/{path.name}"
        for run, path in zip(whole, paths, strict=True)
    ]


def _rows(opened: Sequence[RunView], scores: Sequence[Mapping[str, float]]) -> list[_Row]:
    """The runs, those together that differ by their seed alone."""
    rows: dict[str, _Row] = {}
    for run, its in zip(opened, scores, strict=True):
        asked = flat(run.record)
        same = {path: v for path, v in asked.items() if path.rpartition(".")[2] != SEED_SETTING}
        row = rows.setdefault(repr(sorted(same.items())) if asked else run.name, _Row([], []))
        row.runs.append(run)
        row.scores.append(its)
    return list(rows.values())


def _scores(folder: Path, run: RunView) -> dict[str, float]:
    """Return the scores of the best epoch, or the last on held-out text, and of the test set."""
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
    """The names of the columns that some row fills, and the rows.

    Numbers are `exact` for programs: a column for means, and one for standard deviations.
    """
    columns = {"run": [row.name for row in rows]}
    records = [row.runs[0].record for row in rows]
    kinds = {"config" in record for record in records if record}
    different = different_settings(records) if len(kinds) == 1 else {}  # else nearly all differ
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
            columns[name] = [f"{one['mean']:.6g}" if one else "" for one in scores]
            columns[f"{name}_sd"] = [
                f"{one['sd']:.6g}" if one and one["sd"] else "" for one in scores
            ]
        else:
            columns[name] = [plus_minus(one) if one else "" for one in scores]
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


def _steps(run: RunView) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the lines with the speed of steps, each with the number of steps it stands for."""
    names = ("tokens", "tokens_per_second", "data_wait")
    lines = [one for one in run.lines if all(is_plottable(one.get(name)) for name in names)]
    places = [0, *(one["step"] for one in lines)]
    return [(b - a, one) for (a, b), one in zip(pairwise(places), lines, strict=True)]


def _tokens(run: RunView) -> float | None:
    steps = _steps(run)
    return sum(count * line["tokens"] for count, line in steps) if steps else None


def _seconds(run: RunView) -> float | None:
    """Those of learning alone, without what scoring and saving took."""
    steps = [(count, line) for count, line in _steps(run) if line["tokens_per_second"]]
    seconds = [
        n * (one["tokens"] / one["tokens_per_second"] + one["data_wait"]) for n, one in steps
    ]
    return sum(seconds) if seconds else None


def _picture(opened: Sequence[RunView]) -> Any:
    """The first number that all runs were scored by, or else the loss, by step."""
    charts: list[dict[str, dict[str, list[Point]]]] = []
    for run in opened:
        lines: dict[str, dict[str, list[Point]]] = {}
        for line in run.lines:
            for name, value in {**line.get("held_out", {}), **line.get("scores", {})}.items():
                lines.setdefault(name, {}).setdefault(run.name, []).append((line["step"], value))
        charts.append(lines)
    shared = [name for name in charts[0] if all(name in chart for chart in charts)]
    if shared:
        scored = {
            run.name: chart[shared[0]][run.name] for run, chart in zip(opened, charts, strict=True)
        }
        return curves(scored, x="step", y=shared[0])
    losses = {
        run.name: thin(
            [(one["step"], one["loss"]) for one in run.lines if is_plottable(one.get("loss"))]
        )
        for run in opened
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
    """A tabular with the rules of booktabs."""
    lines = [" & ".join(map(_in_latex, row)) + r" \\" for row in (names, *rows)]
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


def _in_latex(text: str) -> str:
    return text.translate(LATEX)


FORMATS = {"markdown": _markdown, "csv": _csv, "latex": _latex}
