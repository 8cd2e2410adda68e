"""Pictures as SVG, of paths and words alone: the page's policy allows no style beside its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 720, 320
LEFT, BOTTOM, TOP, RIGHT = 56, 40, 26, 32
"""Room for axes, in pixels, as all here."""

COLORS = 6
"""Classes c0, c1, … of the style; more lines begin again."""

Point = tuple[float, float]


def bar(share: float, kind: str = "") -> str:
    """A bar for a number of 0 to 1."""
    width = 128
    full = round(width * min(1.0, max(0.0, share)), 1)
    return (
        f'<svg class="share {kind}" width="{width}" height="10" aria-hidden="true">'
        f'<path class="ground" d="M0 0H{width}V10H0Z"/><path d="M0 0H{full}V10H0Z"/></svg>'
    )


def curves(lines: Mapping[str, Sequence[Point]], *, x: str, y: str) -> str:
    """Lines over a common x, each with its name; none is drawn from fewer than two points."""
    drawn = {name: points for name, points in lines.items() if len(points) > 1}
    every = [point for points in drawn.values() for point in points]
    if not every:
        return "<p>There is nothing to draw yet.</p>"
    across = _Axis([a for a, _ in every], LEFT, WIDTH - RIGHT)
    up = _Axis([b for _, b in every], HEIGHT - BOTTOM, TOP)
    parts = [_frame(across, up, x, y)]
    place = max(float(LEFT), 16.0 + 7 * len(y))  # behind what stands above the axis
    for number, (name, points) in enumerate(drawn.items()):
        color = f"c{number % COLORS}"
        path = "L".join(f"{across.at(a):.1f} {up.at(b):.1f}" for a, b in points)
        parts.append(f'<path class="line {color}" d="M{path}"/>')
        parts.append(f'<path class="line {color}" d="M{place:.0f} 10h16"/>')
        parts.append(_text(place + 20, 10, name, "start"))
        place += 36 + 7 * len(name)
    return _svg(max(WIDTH, math.ceil(place)), HEIGHT, f"{y} by {x}", parts)


def scatter(points: Sequence[Point], names: Sequence[str], title: str, size: int = 200) -> str:
    """Named points in a square, in the same scale both ways."""
    margin = 22
    columns: list[list[float]] = [list(column) for column in zip(*points, strict=True)]
    middle = [(max(column) + min(column)) / 2 for column in columns]
    reach = max(max(column) - min(column) for column in columns) / 2 or 1.0
    scale = (size / 2 - margin) / reach
    parts = [f'<path class="grid" d="M0.5 0.5H{size - 0.5}V{size - 0.5}H0.5Z"/>']
    for number, ((a, b), name) in enumerate(zip(points, names, strict=True)):
        x, y = size / 2 + (a - middle[0]) * scale, size / 2 - (b - middle[1]) * scale
        disc = f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z"
        parts.append(f'<path class="dot c{number % COLORS}" d="{disc}"/>')
        parts.append(_text(x + 7, y, name, "start"))
    parts.append(_text(8, 12, title, "start"))
    return _svg(size, size, title, parts)


class _Axis:
    """A scale from numbers to pixels, and round numbers on it."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        if high - low <= 1e-12 * max(1.0, abs(low), abs(high)):  # as good as one number
            low, high = low - 0.5, high + 0.5
        self.low, self.start, self.scale = low, start, (end - start) / (high - low)
        step = 10 ** math.floor(math.log10((high - low) / 4))
        step *= next(s for s in (1, 2, 5, 10) if (high - low) / (step * s) <= 6)
        first = math.ceil(low / step)
        self.ticks = [n * step for n in range(first, math.floor(high / step) + 1)]
        self.digits = max(0, -math.floor(math.log10(step)))

    def at(self, value: float) -> float:
        return self.start + (value - self.low) * self.scale


def _frame(across: _Axis, up: _Axis, x: str, y: str) -> str:
    base = HEIGHT - BOTTOM
    parts = [f'<path class="grid" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>']
    for tick in across.ticks:
        parts.append(_text(across.at(tick), base + 14, f"{tick:,.{across.digits}f}", "middle"))
    for tick in up.ticks:
        height = up.at(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, height, f"{tick:,.{up.digits}f}", "end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x, "middle"))
    parts.append(_text(4, 10, y, "start"))
    return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="middle">'
        f"{escape(words)}</text>"
    )


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
