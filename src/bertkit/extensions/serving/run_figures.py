"""Figures of runs: their state, the settings that differ, and their curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bertkit.training.journal import is_plottable
from bertkit.view.chart import Point, curves, line_key
from bertkit.view.figures import Beside, Figure, Lines, Table
from bertkit.view.runs import RunView, different_settings, thin

LARGE, SMALL = (520, 300), (520, 200)
"""Width and height of a chart in pixels."""

MAX_NAMES = 4
"""Maximum number of runs that charts name. For more runs, the table has the colors."""

CHARTS = (
    (
        "Results",
        "Loss of the samples that are learned from; loss or scores on what is not.",
        (("loss", "loss"), ("held_out", "held-out loss"), ("scores", "dev score")),
        LARGE,
    ),
    (
        "Steps",
        "Rate, gradients, speed and memory, in the colors of the table.",
        (
            ("learning_rate", "learning rate"),
            ("gradient_norm", "norm of the gradient"),
            ("tokens_per_second", "tokens/s"),
            ("mfu", "MFU"),
            ("data_wait", "seconds of waiting for data"),
            ("peak_memory", "memory, GiB"),
        ),
        SMALL,
    ),
)
"""Figures: name, caption, keys of records with the axis of each, size of charts."""


def run_figures(runs: Sequence[RunView]) -> list[Figure]:
    """Return the state of each run, the settings that differ, and the curves."""
    figures = [Figure("Runs", "How far each is, and its color below.", [_table(runs)])]
    if different := different_settings([run.record for run in runs if run.record]):
        names = ["setting", *(run.name for run in runs if run.record)]
        rows = [(path, *values) for path, values in different.items()]
        caption = "What these runs were asked to do differently."
        figures.append(Figure("Settings", caption, [Table("Settings", rows, names)]))
    for name, caption, numbers, size in CHARTS:
        named = size == LARGE and len(runs) <= MAX_NAMES
        charts = [
            curves(lines, x="step", y=f"{y}: {of}" if of else y, size=size, legend=named)
            for key, y in numbers
            for of, lines in _curves(runs, key).items()
        ]
        if charts:
            figures.append(Figure(name, caption, [Beside("beside", charts)]))
    return figures


def _table(runs: Sequence[RunView]) -> Table:
    """Return the table of the states of runs; columns that are empty in all are omitted."""
    columns: list[tuple[str, Sequence[str]]] = [
        ("run", [line_key(number, run.name) for number, run in enumerate(runs)]),
        ("step", [f"{run.step:,}{_of(run)}" for run in runs]),
        ("state", [_state(run) for run in runs]),
        ("loss", [_last(run, "loss", "{:.3f}") for run in runs]),
        ("held out, or scored", [_scored(run) for run in runs]),
    ]
    more = [
        ("tokens/s", [_last(run, "tokens_per_second", "{:,.0f}") for run in runs]),
        ("MFU", [_last(run, "mfu", "{:.1%}") for run in runs]),
        ("waits for data", [_waits(run) for run in runs]),
        ("memory", [_last(run, "peak_memory", "{:.1f} GiB") for run in runs]),
        ("slowest process", [_slowest(run) for run in runs]),
    ]
    columns += [column for column in more if any(column[1])]
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    return Table("Runs", rows, [name for name, _ in columns])


def _curves(runs: Sequence[RunView], key: str) -> dict[str, dict[str, list[Point]]]:
    """Return the curves of a number in the records: by its name ("" if it has none), then by run.

    The curves of a single run are in one chart.
    """
    charts: dict[str, dict[str, list[Point]]] = {}
    for run in runs:
        for line in run.lines:
            values = line.get(key, {})
            for name, value in values.items() if isinstance(values, Mapping) else [("", values)]:
                if is_plottable(value):
                    points = charts.setdefault(name, {one.name: [] for one in runs})
                    points[run.name].append((line["step"], value))
    charts = {
        name: {run: thin(points) for run, points in lines.items()}
        for name, lines in charts.items()
        if any(len(points) > 1 for points in lines.values())
    }
    if len(runs) == 1 and len(charts) > 1:
        return {"": {name: lines[runs[0].name] for name, lines in charts.items()}}
    return charts


def samples_figure(run: RunView, samples: Sequence[str]) -> Figure:
    """Return the figure of training samples of a run."""
    caption = "The first samples: masked is [MASK]←word, replaced other←word, kept word←=."
    return Figure(f"Samples of {run.name}", caption, [Lines("\n".join(samples))])


def _of(run: RunView) -> str:
    return f" of {run.steps:,}" if run.steps else ""


def _state(run: RunView) -> str:
    return "learns" if run.learns else "done" if run.finished else "stopped, or done"


def _last(run: RunView, key: str, form: str) -> str:
    """Return the last value of a number in the records."""
    values = (line[key] for line in reversed(run.lines) if is_plottable(line.get(key)))
    value = next(values, None)
    return "" if value is None else form.format(value)


def _scored(run: RunView) -> str:
    """Return the last held-out losses or dev scores."""
    for line in reversed(run.lines):
        if scores := line.get("held_out") or line.get("scores"):
            return ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
    return ""


def _waits(run: RunView) -> str:
    """Return the fraction of time in which steps waited for their batches."""
    keys = ("data_wait", "tokens", "tokens_per_second")
    lines = [one for one in run.lines if all(is_plottable(one.get(key)) for key in keys)]
    lines = [one for one in lines if one["tokens_per_second"] > 0]
    waited = sum(one["data_wait"] for one in lines)
    whole = waited + sum(one["tokens"] / one["tokens_per_second"] for one in lines)
    return f"{waited / whole:.1%}" if whole > 0 else ""


def _slowest(run: RunView) -> str:
    """Return the rank of the process that was most often the slowest, and how often."""
    ranks = Counter(str(line["slowest_rank"]) for line in run.lines if "slowest_rank" in line)
    if not ranks:
        return ""
    [(rank, count)] = ranks.most_common(1)
    return f"{rank}, in {count / ranks.total():.0%} of steps"
