"""Charts as SVG, which consist only of paths and text.

Styles are set by CSS classes, because the content security policy of a page forbids inline styles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertkit.metrics import plus_minus
from bertkit.storage import write_text

STYLE = Path(__file__).parent / "pages" / "chart.css"

WIDTH, HEIGHT = 480, 300
LEFT, BOTTOM, TOP, RIGHT = 56, 40, 26, 32
"""Margins of a chart, in which the axes are drawn. All sizes in this module are in pixels."""

LETTER_WIDTH = 6.7
"""Mean width of a letter."""

COLORS, DASHES = 6, 3
"""Number of line colors (CSS classes c0, c1, ...) and of line styles (solid, d1, and d2)."""

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
        parts.append(draw_path(f"line {styles[name]}", line))
        if name in keys:
            start, down = keys[name]
            parts.append(draw_path(f"line {styles[name]}", f"M{start:.0f} {down:.0f}h16"))
            parts.append(draw_text(start + 20, down, name))
            pixels.append((start + 8, down))
        if name in dotted:
            parts += [draw_disc(f"dot {styles[name]}", a, b, 3) for a, b in pixels]
    end = max((start + 36 + 7 * len(name) for name, (start, _) in keys.items()), default=0.0)
    return draw_svg(max(width, math.ceil(end)), height, f"{y} by {x}", parts)


def line_style(number: int) -> str:
    """Return the CSS classes of a line: a color, and a dash style when all colors are used."""
    dashes = number // COLORS % DASHES
    return f"c{number % COLORS}" + (f" d{dashes}" if dashes else "")


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
    parts = [draw_path("grid", f"M{across.at(tick):.1f} 4V{base}") for tick in across.ticks]
    for tick in across.ticks:
        parts.append(draw_text(across.at(tick), base + 14, across.label(tick), "middle"))
    for number, (name, row, end, note) in enumerate(zip(scores, rows, ends, notes, strict=True)):
        mean, sd, middle = row["mean"], row["sd"], 4 + high * (number + 0.5)
        parts.append(draw_text(left - 8, middle, name, "end"))
        start = across.at(0.0)
        parts.append(draw_path("bar", f"M{start:.1f} {middle - 9}h{across.at(mean) - start:.1f}v18"
                           f"H{start:.1f}Z"))  # fmt: skip
        if sd:
            a, b = across.at(mean - sd), across.at(mean + sd)
            parts.append(draw_path("error", f"M{a:.1f} {middle}H{b:.1f}M{a:.1f} {middle - 4}v8"
                               f"M{b:.1f} {middle - 4}v8"))  # fmt: skip
            parts += [draw_disc("seed", across.at(seed), middle, 3) for seed in row.get("each", ())]
        parts.append(draw_text(across.at(end) + 8, middle, note, kind="value"))
    parts.append(draw_text(left + width / 2, base + 34, metric, "middle"))
    return draw_svg(math.ceil(left + width + right), base + 44, metric, parts)


def write_svg(path: Path, chart: Markup) -> None:
    """Write a chart to an SVG file, in the colors of the light theme on a white background.

    Args:
        path: The file.
        chart: The chart.
    """
    style = re.sub(r"var\(--\w+, (#\w+)\)", r"\1", STYLE.read_text(encoding="utf-8"))
    # `curves` returns a paragraph if there are no points.
    if not chart.startswith("<svg"):
        message = draw_text(WIDTH / 2, HEIGHT / 2, chart.striptags(), "middle")
        chart = draw_svg(WIDTH, HEIGHT, "", [message])
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
    parts = [draw_path("grid", f"M{LEFT} {base}H{right}")]
    for tick in across.ticks:
        parts.append(draw_text(across.at(tick), base + 14, across.label(tick), "middle"))
    for tick in up.ticks:
        level = up.at(tick)
        parts.append(draw_path("grid", f"M{LEFT} {level:.1f}H{right}"))
        parts.append(draw_text(LEFT - 6, level, up.label(tick), "end"))
    parts.append(draw_text((LEFT + right) / 2, height - 8, x, "middle"))
    parts.append(draw_text(4, 10, y))
    return parts


def draw_path(kind: str, line: str) -> Markup:
    """Draw a path. `kind` contains its CSS classes."""
    return Markup('<path class="{}" d="{}"/>').format(kind.strip(), line)


def draw_disc(kind: str, x: float, y: float, size: int) -> Markup:
    """Draw a disc with a center and a radius. `kind` contains its CSS classes."""
    arc = f"a{size} {size} 0 1 0"
    return draw_path(kind, f"M{x - size:.1f} {y:.1f}{arc} {2 * size} 0{arc} {-2 * size} 0Z")


def draw_text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> Markup:
    """Draw text at a position. `kind` contains its CSS classes."""
    return Markup(
        '<text{} x="{:.1f}" y="{:.1f}" text-anchor="{}" dominant-baseline="middle">{}</text>'
    ).format(Markup(' class="{}"').format(kind) if kind else "", x, y, anchor, text)


def draw_svg(width: int, height: int, title: str, parts: Sequence[Markup]) -> Markup:
    """Combine the parts of a chart."""
    return Markup(
        '<svg class="chart" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" '
        'aria-label="{2}">{3}</svg>'
    ).format(width, height, title, Markup("").join(parts))
