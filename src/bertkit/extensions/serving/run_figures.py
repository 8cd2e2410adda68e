"""Figures that compare training runs: their state, the settings that differ, and their curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from bertkit.training.journal import is_plottable
from bertkit.view.chart import Point, curves, draw_path, line_style
from bertkit.view.figures import Beside, Figure, Lines, Table
from bertkit.view.runs import RunView, different_settings, thin

LARGE, SMALL = (520, 300), (520, 200)
"""Width and height of a chart in pixels."""

MAX_NAMES = 4
"""Maximum number of runs for which the charts have a legend. For more runs, the table shows the
color of each run."""

CHARTS = (
    (
        "Results",
        "The training loss, and the loss or scores on held-out data.",
        (("loss", "loss"), ("held_out", "held-out loss"), ("scores", "dev score")),
        LARGE,
    ),
    (
        "Steps",
        "Learning rate, gradients, speed and memory. The table above shows the color of each run.",
        (
            ("learning_rate", "learning rate"),
            ("gradient_norm", "gradient norm"),
            ("tokens_per_second", "tokens/s"),
            ("mfu", "MFU"),
            ("data_wait", "seconds waiting for data"),
            ("peak_memory", "memory, GiB"),
        ),
        SMALL,
    ),
)
"""Figures of curves. Each has a name, a caption, the keys of the records to plot with their axis
labels, and the size of the charts."""


def run_figures(runs: Sequence[RunView]) -> list[Figure]:
    """Return figures that compare runs: their state, the settings that differ, and the curves.

    Args:
        runs: The runs.
    """
    figures = [Figure("Runs", "Progress of each run, and its color in the charts.", [_table(runs)])]
    if different := different_settings([run.record for run in runs if run.record]):
        names = ["setting", *(run.name for run in runs if run.record)]
        rows = [(path, *values) for path, values in different.items()]
        caption = "Settings that differ between these runs."
        figures.append(Figure("Settings", caption, [Table("Settings", rows, names)]))
    for name, caption, keys, size in CHARTS:
        legend = size == LARGE and len(runs) <= MAX_NAMES
        charts = [
            curves(lines, x="step", y=f"{y}: {part}" if part else y, size=size, legend=legend)
            for key, y in keys
            for part, lines in _curves(runs, key).items()
        ]
        if charts:
            figures.append(Figure(name, caption, [Beside("beside", charts)]))
    return figures


def _table(runs: Sequence[RunView]) -> Table:
    """Return a table of the states of runs, leaving out columns that are empty for all runs."""
    columns: list[tuple[str, Sequence[str]]] = [
        ("run", [line_key(number, run.name) for number, run in enumerate(runs)]),
        ("step", [f"{run.step:,}{_of(run)}" for run in runs]),
        ("state", [_state(run) for run in runs]),
        ("loss", [_last(run, "loss", "{:.3f}") for run in runs]),
        ("held-out loss or score", [_scored(run) for run in runs]),
    ]
    more = [
        ("tokens/s", [_last(run, "tokens_per_second", "{:,.0f}") for run in runs]),
        ("MFU", [_last(run, "mfu", "{:.1%}") for run in runs]),
        ("waiting for data", [_waits(run) for run in runs]),
        ("memory", [_last(run, "peak_memory", "{:.1f} GiB") for run in runs]),
        ("slowest process", [_slowest(run) for run in runs]),
    ]
    columns += [column for column in more if any(column[1])]
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    return Table("Runs", rows, [name for name, _ in columns])


def _curves(runs: Sequence[RunView], key: str) -> dict[str, dict[str, list[Point]]]:
    """Return the curves of a value in the records, by the name of the value and by run.

    A value without a name has the name "". If there is only one run, all curves share a chart.
    """
    charts: dict[str, dict[str, list[Point]]] = {}
    for run in runs:
        for line in run.lines:
            values = line.get(key, {})
            for name, value in values.items() if isinstance(values, Mapping) else [("", values)]:
                if is_plottable(value):
                    points = charts.setdefault(name, {other.name: [] for other in runs})
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
    """Return a figure with training samples of a run.

    Args:
        run: The run.
        samples: Training samples as text.
    """
    caption = (
        "The first training samples. [MASK]←word: the word is masked. other←word: the word is "
        "replaced. word←=: the word is selected, but not changed."
    )
    return Figure(f"Samples of {run.name}", caption, [Lines("\n".join(samples))])


def _of(run: RunView) -> str:
    return f" of {run.steps:,}" if run.steps else ""


def _state(run: RunView) -> str:
    return "running" if run.learns else "finished" if run.finished else "stopped or finished"


def _last(run: RunView, key: str, form: str) -> str:
    """Format the last value of a key in the records."""
    values = (line[key] for line in reversed(run.lines) if is_plottable(line.get(key)))
    value = next(values, None)
    return "" if value is None else form.format(value)


def _scored(run: RunView) -> str:
    """Format the last held-out losses or dev scores."""
    for line in reversed(run.lines):
        if scores := line.get("held_out") or line.get("scores"):
            return ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
    return ""


def _waits(run: RunView) -> str:
    """Format the fraction of time during which steps waited for data."""
    keys = ("data_wait", "tokens", "tokens_per_second")
    lines = [record for record in run.lines if all(is_plottable(record.get(key)) for key in keys)]
    lines = [record for record in lines if record["tokens_per_second"] > 0]
    waited = sum(record["data_wait"] for record in lines)
    total = waited + sum(r["tokens"] / r["tokens_per_second"] for r in lines)
    return f"{waited / total:.1%}" if total > 0 else ""


def _slowest(run: RunView) -> str:
    """Format the rank of the process that was slowest most often, and the fraction of steps."""
    ranks = Counter(str(line["slowest_rank"]) for line in run.lines if "slowest_rank" in line)
    if not ranks:
        return ""
    [(rank, count)] = ranks.most_common(1)
    return f"{rank} ({count / ranks.total():.0%} of the steps)"


def line_key(number: int, name: str) -> Markup:
    """Draw a sample of a line, followed by its name.

    Args:
        number: Index of the line in its chart.
        name: Name of the line.
    """
    return Markup('<svg class="key" width="22" height="10" aria-hidden="true">{}</svg>{}').format(
        draw_path(f"line {line_style(number)}", "M0 5h16"), name
    )
