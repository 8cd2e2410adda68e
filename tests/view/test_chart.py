"""Pictures of paths: where points stand, and what cannot be drawn."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.view.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, bar, curves, scatter

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 6))


def points(svg: str, kind: str) -> list[tuple[float, float]]:
    """Of all paths of a class; numbers come in pairs."""
    found = []
    for path in ET.fromstring(svg).iter("path"):
        if kind in path.attrib["class"].split():
            numbers = list(map(float, re.findall(r"-?[\d.]+", path.attrib["d"])))
            found += list(zip(numbers[::2], numbers[1::2], strict=False))
    return found


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=20))
def test_lines_stay_in_their_frame(line: list[tuple[float, float]]) -> None:
    svg = curves({"a": line}, x="step", y="loss")
    first = points(svg, "c0")[: len(line)]
    for x, y in first:
        assert LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1
        assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1


def test_points_stand_where_their_numbers_say() -> None:
    svg = curves({"a <b>": [(0, 0), (50, 5), (100, 10)]}, x="step", y="loss")
    middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    first, second, third = points(svg, "c0")[:3]
    assert first == pytest.approx((LEFT, HEIGHT - BOTTOM))
    assert second == pytest.approx(middle)
    assert third == pytest.approx((WIDTH - RIGHT, TOP))
    words = [text.text for text in ET.fromstring(svg).iter("text")]
    assert {"0", "20", "100", "10", "step", "loss", "a <b>"} <= set(words)


def test_nothing_to_draw() -> None:
    assert "nothing to draw" in curves({"a": [(1, 2)]}, x="x", y="y")
    flat = curves({"a": [(1, 2), (2, 2)]}, x="x", y="y")
    assert math.isfinite(points(flat, "c0")[0][1])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=9))
def test_maps_hold_all_points(places: list[tuple[float, float]]) -> None:
    svg = scatter(places, [str(i) for i in range(len(places))], "layer 1")
    starts = re.findall(r'class="dot c\d" d="M(-?[\d.]+) (-?[\d.]+)a', svg)
    assert len(starts) == len(places)
    for x, y in starts:
        assert 0 <= float(x) + 4 <= 200
        assert 0 <= float(y) <= 200


def test_maps_have_one_scale() -> None:
    svg = scatter([(0, 0), (10, 0), (0, 5)], ["a", "b", "c"], "t", size=100)
    a, b, c = ((float(x) + 4, float(y)) for x, y in re.findall(r'd="M(-?[\d.]+) (-?[\d.]+)a', svg))
    assert b[0] - a[0] == pytest.approx(2 * (a[1] - c[1]))


def test_bars() -> None:
    assert "H64.0V10" in bar(0.5)
    assert "H128.0V10" in bar(7.0)
    assert "H0.0V10" in bar(-1.0)
