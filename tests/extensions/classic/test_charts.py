"""Charts of vectors: positions, scales, and colors."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.extensions.classic.charts import Square, scatter, squares

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 6))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9))
def test_scatter_shows_all_points(positions: list[tuple[float, float]]) -> None:
    svg = scatter(positions, [str(i) for i in range(len(positions))], "layer 1")
    starts = re.findall(r'class="dot c\d" d="M(-?[\d.]+) (-?[\d.]+)a', svg)
    assert len(starts) == len(positions)
    for x, y in starts:
        assert 0 <= float(x) + 4 <= 200
        assert 0 <= float(y) <= 200


def test_scatter_uses_equal_scales() -> None:
    svg = scatter([(0, 0), (10, 0), (0, 5)], ["a", "b", "c"], "t", size=100)
    a, b, c = ((float(x) + 4, float(y)) for x, y in re.findall(r'd="M(-?[\d.]+) (-?[\d.]+)a', svg))
    assert b[0] - a[0] == pytest.approx(2 * (a[1] - c[1]))


@given(st.integers(1, 6), st.integers(1, 5), st.text(max_size=40))
def test_squares_show_values_inside_frame(count: int, panels: int, name: str) -> None:
    rows = [[round((a - b) / count, 2) for b in range(count)] for a in range(count)]
    svg = squares([Square(name, "below", rows)] * panels, "cosines")
    width, height = (float(re.findall(rf'{side}="(\d+)"', svg)[0]) for side in ("width", "height"))
    cells = re.findall(r'class="cell s(\d+)" d="M(\d+) (\d+)h(\d+)', svg)
    levels = [round(10 * max(0.0, value)) for row in rows for value in row]
    assert [int(level) for level, *_ in cells] == levels * panels
    positions = {(int(x), int(y)) for _, x, y, _ in cells}
    # No square covers another.
    assert len(positions) == len(cells)
    assert max(x for x, _ in positions) + 36 <= width
    assert max(y for _, y in positions) + 36 <= height
