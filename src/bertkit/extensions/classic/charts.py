"""Charts of vectors: a row of cells, points of a map, and matrices of cosines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from bertkit.view.chart import (
    COLORS,
    LETTER_WIDTH,
    WIDTH,
    Point,
    draw_disc,
    draw_path,
    draw_svg,
    draw_text,
)

CELLS, LEVELS = 128, 8
"""Number of cells in a strip, and number of shades of each color."""


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
    return draw_svg(2 * CELLS, 14, f"{len(values)} values", parts)


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
    parts = [draw_path("grid", f"M0.5 0.5H{size - 0.5}V{size - 0.5}H0.5Z")]
    for number, ((a, b), name) in enumerate(zip(points, names, strict=True)):
        x, y = size / 2 + (a - middle[0]) * scale, size / 2 - (b - middle[1]) * scale
        parts += [draw_disc(f"dot c{number % COLORS}", x, y, 4), draw_text(x + 7, y, name)]
    parts.append(draw_text(8, 12, title))
    return draw_svg(size, size, title, parts)


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
        parts += [
            draw_text(x + 4, y + 12, panel.name, kind="value"),
            draw_text(x + 4, y + 30, panel.below),
        ]
        for index in range(len(panel.cosines)):
            middle = cell * (index + 0.5)
            parts.append(draw_text(x + left - 8, y + top + middle, str(index + 1), "end"))
            parts.append(draw_text(x + left + middle, y + top - 10, str(index + 1), "middle"))
        for row, cosines in enumerate(panel.cosines):
            for column, cosine in enumerate(cosines):
                a, b, size = x + left + cell * column, y + top + cell * row, cell - 2
                level = f"cell s{round(10 * max(0.0, cosine))}"
                parts.append(draw_path(level, f"M{a} {b}h{size}v{size}h{-size}Z"))
                middle = cell / 2 - 1
                parts.append(draw_text(a + middle, b + middle, f"{cosine:.2f}", "middle", "value"))
    return draw_svg(width * across, height * -(-len(panels) // across), title, parts)
