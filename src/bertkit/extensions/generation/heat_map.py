"""Chart of the attention between two texts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from bertkit.view.chart import LETTER_WIDTH, draw_path, draw_svg, draw_text

CELL_SIZE = 24
"""Width and height of a cell of a heat map."""


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
    parts = [draw_text(left - 8, top - 12, y, "end"), draw_text(left, 10, x)]
    for across, name in enumerate(columns):
        parts.append(_upright(left + CELL_SIZE * (across + 0.5), top - 6, name))
    for down, (name, row) in enumerate(zip(rows, cells, strict=True)):
        middle = top + CELL_SIZE * (down + 0.5)
        parts.append(draw_text(left - 8, middle, name, "end"))
        for across, cell in enumerate(row):
            start = f"M{left + CELL_SIZE * across:.1f} {middle - CELL_SIZE / 2:.1f}"
            square = f"{start}h{CELL_SIZE}v{CELL_SIZE}h-{CELL_SIZE}Z"
            parts += [
                Markup('<path class="cell" fill-opacity="{:.3f}" d="{}"><title>{}</title></path>')
                .format(cell, square, f"{name} {columns[across]} {cell:.3f}"),
                draw_path("grid", square),
            ]  # fmt: skip
    width, height = left + CELL_SIZE * len(columns) + 8, top + CELL_SIZE * len(rows) + 8
    width = max(width, left + LETTER_WIDTH * len(x))
    return draw_svg(math.ceil(width), math.ceil(height), f"{y} by {x}", parts)


def _upright(x: float, y: float, text: str) -> Markup:
    """Draw text that is rotated, so that it reads from bottom to top."""
    return Markup(
        '<text transform="translate({:.1f} {:.1f}) rotate(-90)" dominant-baseline="middle">'
        "{}</text>"
    ).format(x, y, text)
