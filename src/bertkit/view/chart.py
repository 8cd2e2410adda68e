"""Charts as SVG, which consist only of paths and text.

Styles are set by CSS classes, because the content security policy of a page forbids inline styles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from bertkit.metrics import plus_minus
from bertkit.storage import write_text

STYLE = Path(__file__).parent / "pages" / "chart.css"

WIDTH, HEIGHT = 480, 300
LEFT, BOTTOM, TOP, RIGHT = 56, 40, 26, 32
"""Margins of a chart, in which the axes are drawn. All sizes in this module are in pixels."""

LETTER_WIDTH = 6.7
"""Mean width of a letter."""

CELL_SIZE = 24
"""Width and height of a cell of a heat map."""

COLORS, DASHES = 6, 3
"""Number of line colors (CSS classes c0, c1, ...) and of line styles (solid, d1, and d2)."""

CELLS, LEVELS = 128, 8
"""Number of cells in a strip, and number of shades of each color."""

Point = tuple[float, float]


def share_bar(share: float, kind: str = "") -> Markup:
    """Draw a bar for a number between 0 and 1.

    Args:
        share: The number.
        kind: CSS class of the bar.
    """
    width = 128
    full = round(width * min(1.0, max(0.0, share)), 1)
    return Markup(
        '<svg class="share {}" width="{}" height="10" aria-hidden="true">'
        '<path class="ground" d="M0 0H{}V10H0Z"/><path d="M0 0H{}V10H0Z"/></svg>'
    ).format(kind, width, width, full)


def strip(values: Sequence[float], reach: float) -> Markup:
    """Draw the first `CELLS` values of a vector as a row of cells.

    Positive values are blue and negative values orange. Larger absolute values are darker.

    Args:
        values: The vector.
        reach: Absolute value that has the darkest color.
    """
    lines: dict[tuple[str, int], str] = {}
    for number, value in enumerate(values[:CELLS]):
        level = round(LEVELS * min(1.0, abs(value) / (reach or 1.0)))
        if level:
            key = "c0" if value > 0 else "c1", level
            lines[key] = lines.get(key, "") + f"M{2 * number} 0h2v14h-2z"
    parts = [
        Markup('<path class="dot {}" fill-opacity="{}" d="{}"/>').format(kind, level / LEVELS, line)
        for (kind, level), line in lines.items()
    ]
    return _svg(2 * CELLS, 14, f"{len(values)} values", parts)


def curves(
    lines: Mapping[str, Sequence[Point]],
    *,
    x: str,
    y: str,
    dotted: Sequence[str] = (),
    size: tuple[int, int] = (WIDTH, HEIGHT),
    legend: bool = True,
) -> Markup:
    """Draw several lines over a common x-axis.

    A line with only one point is visible only if it is dotted. Lines that are not visible also have
    a color, so that charts of the same lines have the same colors.

    Args:
        lines: Points of each line, by the name of the line.
        x: Title of the x-axis.
        y: Title of the y-axis.
        dotted: Names of the lines that have a dot at each point.
        size: Width and height of the chart.
        legend: Whether to draw the names of the lines.
    """
    visible = {n: points for n, points in lines.items() if len(points) > (0 if n in dotted else 1)}
    all_points = [point for points in visible.values() for point in points]
    if not all_points:
        return Markup("<p>There is nothing to draw yet.</p>")
    width, height = size
    styles = {name: line_style(number) for number, name in enumerate(lines)}
    keys = _position_legend(visible, max(float(LEFT), 16.0 + 7 * len(y)), width) if legend else {}
    top = TOP + max((down for _, down in keys.values()), default=10) - 10
    across = _Axis([a for a, _ in all_points], LEFT, width - RIGHT)
    up = _Axis([b for _, b in all_points], height - BOTTOM, top)
    parts = _frame(across, up, x, y, size)
    for name, points in visible.items():
        pixels = [(across.at(a), up.at(b)) for a, b in points]
        line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in pixels)
        parts.append(_path(f"line {styles[name]}", line))
        if name in keys:
            start, down = keys[name]
            parts.append(_path(f"line {styles[name]}", f"M{start:.0f} {down:.0f}h16"))
            parts.append(_text(start + 20, down, name))
            pixels.append((start + 8, down))
        if name in dotted:
            parts += [_disc(f"dot {styles[name]}", a, b, 3) for a, b in pixels]
    end = max((start + 36 + 7 * len(name) for name, (start, _) in keys.items()), default=0.0)
    return _svg(max(width, math.ceil(end)), height, f"{y} by {x}", parts)


def line_style(number: int) -> str:
    """Return the CSS classes of a line: a color, and a dash style when all colors are used."""
    dashes = number // COLORS % DASHES
    return f"c{number % COLORS}" + (f" d{dashes}" if dashes else "")


def line_key(number: int, name: str) -> Markup:
    """Draw a sample of a line, followed by its name.

    Args:
        number: Index of the line in its chart.
        name: Name of the line.
    """
    return Markup('<svg class="key" width="22" height="10" aria-hidden="true">{}</svg>{}').format(
        _path(f"line {line_style(number)}", "M0 5h16"), name
    )


def _position_legend(names: Iterable[str], start: float, width: int) -> dict[str, Point]:
    """Return the position of each name in the legend, which has rows that fit into the width."""
    positions, x, y = {}, start, 10.0
    for name in names:
        needed = 36 + 7 * len(name)
        if x > start and x + needed > width:
            x, y = start, y + 16
        positions[name] = (x, y)
        x += needed
    return positions


def scatter(points: Sequence[Point], names: Sequence[str], title: str, size: int = 200) -> Markup:
    """Draw named points in a square, with the same scale on both axes.

    Args:
        points: The points.
        names: Name of each point.
        title: Title of the chart.
        size: Width and height.
    """
    margin = 22
    columns: list[list[float]] = [list(column) for column in zip(*points, strict=True)]
    middle = [(max(column) + min(column)) / 2 for column in columns]
    reach = max(max(column) - min(column) for column in columns) / 2 or 1.0
    scale = (size / 2 - margin) / reach
    parts = [_path("grid", f"M0.5 0.5H{size - 0.5}V{size - 0.5}H0.5Z")]
    for number, ((a, b), name) in enumerate(zip(points, names, strict=True)):
        x, y = size / 2 + (a - middle[0]) * scale, size / 2 - (b - middle[1]) * scale
        parts += [_disc(f"dot c{number % COLORS}", x, y, 4), _text(x + 7, y, name)]
    parts.append(_text(8, 12, title))
    return _svg(size, size, title, parts)


class Square(NamedTuple):
    """Square matrix of cosines, with a name and a second line of text below the name."""

    name: str
    below: str
    cosines: Sequence[Sequence[float]]


def squares(panels: Sequence[Square], title: str) -> Markup:
    """Draw matrices of cosines next to each other, in as many rows as the width requires.

    Rows and columns are numbered from 1. Cells with higher cosines are darker.

    Args:
        panels: The matrices, all of the same size.
        title: Title of the chart.
    """
    cell, left, top, gap = 38, 26, 64, 24
    side = cell * len(panels[0].cosines)
    names = max(len(text) for panel in panels for text in (panel.name, panel.below))
    width, height = max(left + side, math.ceil(LETTER_WIDTH * names)) + gap, top + side + gap
    across = max(1, min(len(panels), WIDTH // width))
    parts = []
    for number, panel in enumerate(panels):
        x, y = width * (number % across), height * (number // across)
        parts += [_text(x + 4, y + 12, panel.name, kind="value"), _text(x + 4, y + 30, panel.below)]
        for index in range(len(panel.cosines)):
            middle = cell * (index + 0.5)
            parts.append(_text(x + left - 8, y + top + middle, str(index + 1), "end"))
            parts.append(_text(x + left + middle, y + top - 10, str(index + 1), "middle"))
        for row, cosines in enumerate(panel.cosines):
            for column, cosine in enumerate(cosines):
                a, b, size = x + left + cell * column, y + top + cell * row, cell - 2
                level = f"cell s{round(10 * max(0.0, cosine))}"
                parts.append(_path(level, f"M{a} {b}h{size}v{size}h{-size}Z"))
                middle = cell / 2 - 1
                parts.append(_text(a + middle, b + middle, f"{cosine:.2f}", "middle", "value"))
    return _svg(width * across, height * -(-len(panels) // across), title, parts)


def score_bars(scores: Mapping[str, Mapping[str, Any]], metric: str) -> Markup:
    """Draw a bar for each mean score, with its standard deviation and the scores of single seeds.

    Args:
        scores: Results of `metrics.mean_and_sd`, by the name of the bar.
        metric: Name of the score.
    """
    rows = list(scores.values())
    notes = [plus_minus(row) for row in rows]
    high = 32
    left = 16 + LETTER_WIDTH * max(map(len, scores))
    width = max(160.0, WIDTH - left - (right := 16 + LETTER_WIDTH * max(map(len, notes))))
    ends = [max(0.0, row["mean"] + row["sd"], *row.get("each", ())) for row in rows]
    starts = [min(0.0, row["mean"] - row["sd"], *row.get("each", ())) for row in rows]
    across = _Axis([0.0, *starts, *ends], left, left + width)
    base = high * len(rows) + 8
    parts = [_path("grid", f"M{across.at(tick):.1f} 4V{base}") for tick in across.ticks]
    for tick in across.ticks:
        parts.append(_text(across.at(tick), base + 14, across.label(tick), "middle"))
    for number, (name, row, end, note) in enumerate(zip(scores, rows, ends, notes, strict=True)):
        mean, sd, middle = row["mean"], row["sd"], 4 + high * (number + 0.5)
        parts.append(_text(left - 8, middle, name, "end"))
        start = across.at(0.0)
        parts.append(_path("bar", f"M{start:.1f} {middle - 9}h{across.at(mean) - start:.1f}v18"
                           f"H{start:.1f}Z"))  # fmt: skip
        if sd:
            a, b = across.at(mean - sd), across.at(mean + sd)
            parts.append(_path("error", f"M{a:.1f} {middle}H{b:.1f}M{a:.1f} {middle - 4}v8"
                               f"M{b:.1f} {middle - 4}v8"))  # fmt: skip
            parts += [_disc("seed", across.at(seed), middle, 3) for seed in row.get("each", ())]
        parts.append(_text(across.at(end) + 8, middle, note, kind="value"))
    parts.append(_text(left + width / 2, base + 34, metric, "middle"))
    return _svg(math.ceil(left + width + right), base + 44, metric, parts)


def heat_map(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[float]], *, x: str, y: str
) -> Markup:
    """Draw a square for each number in a table. Larger numbers are darker.

    Args:
        rows: Names of the rows.
        columns: Names of the columns, which are written vertically.
        cells: Numbers between 0 and 1 in each row.
        x: Title of the columns.
        y: Title of the rows.
    """
    left = 16 + LETTER_WIDTH * max(map(len, [*rows, y]))
    top = 24 + LETTER_WIDTH * max(map(len, columns))
    parts = [_text(left - 8, top - 12, y, "end"), _text(left, 10, x)]
    for across, name in enumerate(columns):
        parts.append(_upright(left + CELL_SIZE * (across + 0.5), top - 6, name))
    for down, (name, row) in enumerate(zip(rows, cells, strict=True)):
        middle = top + CELL_SIZE * (down + 0.5)
        parts.append(_text(left - 8, middle, name, "end"))
        for across, cell in enumerate(row):
            start = f"M{left + CELL_SIZE * across:.1f} {middle - CELL_SIZE / 2:.1f}"
            square = f"{start}h{CELL_SIZE}v{CELL_SIZE}h-{CELL_SIZE}Z"
            parts += [
                Markup('<path class="cell" fill-opacity="{:.3f}" d="{}"><title>{}</title></path>')
                .format(cell, square, f"{name} {columns[across]} {cell:.3f}"),
                _path("grid", square),
            ]  # fmt: skip
    width, height = left + CELL_SIZE * len(columns) + 8, top + CELL_SIZE * len(rows) + 8
    width = max(width, left + LETTER_WIDTH * len(x))
    return _svg(math.ceil(width), math.ceil(height), f"{y} by {x}", parts)


def write_svg(path: Path, chart: Markup) -> None:
    """Write a chart to an SVG file, in the colors of the light theme on a white background.

    Args:
        path: The file.
        chart: The chart.
    """
    style = re.sub(r"var\(--\w+, (#\w+)\)", r"\1", STYLE.read_text(encoding="utf-8"))
    # `curves` returns a paragraph if there are no points.
    if not chart.startswith("<svg"):
        chart = _svg(WIDTH, HEIGHT, "", [_text(WIDTH / 2, HEIGHT / 2, chart.striptags(), "middle")])
    opening, inside = chart.split(">", 1)
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    name = 'xmlns="http://www.w3.org/2000/svg"'
    write_text(path, f"{opening} {name}><style>{style}</style>{background}{inside}\n")


class _Axis:
    """Linear scale from values to pixels, with ticks at round numbers."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        # If the values are almost equal, the scale would become infinite.
        if high - low <= 1e-12 * max(1.0, abs(low), abs(high)):
            low, high = low - 0.5, high + 0.5
        self.low, self.start, self.scale = low, start, (end - start) / (high - low)
        step = 10 ** math.floor(math.log10((high - low) / 4))
        step *= next(s for s in (1, 2, 5, 10) if (high - low) / (step * s) <= 6)
        first = math.ceil(low / step)
        self.ticks = [n * step for n in range(first, math.floor(high / step) + 1)]
        self.digits = max(0, -math.floor(math.log10(step)))

    def at(self, value: float) -> float:
        return self.start + (value - self.low) * self.scale

    def label(self, tick: float) -> str:
        return f"{tick:,.{self.digits}f}"


def _frame(across: _Axis, up: _Axis, x: str, y: str, size: tuple[int, int]) -> list[Markup]:
    right, height = size[0] - RIGHT, size[1]
    base = height - BOTTOM
    parts = [_path("grid", f"M{LEFT} {base}H{right}")]
    for tick in across.ticks:
        parts.append(_text(across.at(tick), base + 14, across.label(tick), "middle"))
    for tick in up.ticks:
        level = up.at(tick)
        parts.append(_path("grid", f"M{LEFT} {level:.1f}H{right}"))
        parts.append(_text(LEFT - 6, level, up.label(tick), "end"))
    parts.append(_text((LEFT + right) / 2, height - 8, x, "middle"))
    parts.append(_text(4, 10, y))
    return parts


def _path(kind: str, line: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(kind.strip(), line)


def _disc(kind: str, x: float, y: float, size: int) -> Markup:
    arc = f"a{size} {size} 0 1 0"
    return _path(kind, f"M{x - size:.1f} {y:.1f}{arc} {2 * size} 0{arc} {-2 * size} 0Z")


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> Markup:
    return Markup(
        '<text{} x="{:.1f}" y="{:.1f}" text-anchor="{}" dominant-baseline="middle">{}</text>'
    ).format(Markup(' class="{}"').format(kind) if kind else "", x, y, anchor, text)


def _upright(x: float, y: float, text: str) -> Markup:
    """Draw text that is rotated, so that it reads from bottom to top."""
    return Markup(
        '<text transform="translate({:.1f} {:.1f}) rotate(-90)" dominant-baseline="middle">'
        "{}</text>"
    ).format(x, y, text)


def _svg(width: int, height: int, title: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" '
        'aria-label="{2}">{3}</svg>'
    ).format(width, height, title, Markup("").join(parts))
