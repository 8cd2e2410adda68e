"""SVG charts: positions, escaping, and unusual values."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.view.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    curves,
    line_style,
    score_bars,
    share_bar,
    write_svg,
)

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 6))


def points(svg: str, kind: str) -> list[tuple[float, float]]:
    """Return the points of all paths of a class. Numbers come in pairs."""
    found = []
    for path in ET.fromstring(svg).iter("path"):
        if kind in path.attrib["class"].split():
            numbers = list(map(float, re.findall(r"-?[\d.]+", path.attrib["d"])))
            found += list(zip(numbers[::2], numbers[1::2], strict=False))
    return found


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=20))
def test_lines_stay_inside_frame(line: list[tuple[float, float]]) -> None:
    svg = curves({"a": line}, x="step", y="loss")
    first = points(svg, "c0")[: len(line)]
    for x, y in first:
        assert LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1
        assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1


def test_points_are_at_their_coordinates() -> None:
    svg = curves({"a <b>": [(0, 0), (50, 5), (100, 10)]}, x="step", y="loss")
    middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    first, second, third = points(svg, "c0")[:3]
    assert first == pytest.approx((LEFT, HEIGHT - BOTTOM))
    assert second == pytest.approx(middle)
    assert third == pytest.approx((WIDTH - RIGHT, TOP))
    words = [text.text for text in ET.fromstring(svg).iter("text")]
    assert {"0", "20", "100", "10", "step", "loss", "a <b>"} <= set(words)


@given(st.lists(st.text("ab c<", max_size=40), min_size=1, max_size=30, unique=True))
def test_legend_is_above_the_frame(names: list[str]) -> None:
    svg = curves({name: [(0, 0), (1, 1)] for name in names}, x="step", y="loss")
    keys = [tuple(map(float, key)) for key in re.findall(r'd="M(\d+) (\d+)h16"', svg)]
    assert len(keys) == len(set(keys)) == len(names)
    highest = min(y for _, y in points(svg, "line") if y not in {down for _, down in keys})
    assert max(down for _, down in keys) < highest
    assert curves({"a": [(0, 0), (1, 1)]}, x="x", y="y", legend=False).count("h16") == 0


def test_lines_beyond_the_palette_are_dashed() -> None:
    assert len({line_style(number) for number in range(18)}) == 18
    assert (line_style(5), line_style(6)) == ("c5", "c0 d1")


def test_curves_without_lines_show_a_message() -> None:
    assert "nothing to draw" in curves({"a": [(1, 2)]}, x="x", y="y")
    flat = curves({"a": [(1, 2), (2, 2)]}, x="x", y="y")
    assert math.isfinite(points(flat, "c0")[0][1])


def test_share_bar_clips_to_its_width() -> None:
    assert "H64.0V10" in share_bar(0.5)
    assert "H128.0V10" in share_bar(7.0)
    assert "H0.0V10" in share_bar(-1.0)


def test_dotted_lines_show_each_point() -> None:
    svg = curves({"a": [(0, 0), (2, 1)], "b": [(1, 0.5)]}, x="x", y="y", dotted=["b"])
    (dot, _) = re.findall(r'class="dot c1" d="M(-?[\d.]+) (-?[\d.]+)a', svg)
    assert (float(dot[0]) + 3, float(dot[1])) == pytest.approx(
        ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    )


SCORES = {"mean": st.floats(-1, 1), "sd": st.floats(0, 1), "each": st.lists(st.floats(-1, 1))}


@given(st.dictionaries(st.text(max_size=30), st.fixed_dictionaries(SCORES), min_size=1, max_size=5))
def test_bars_stay_inside_frame(scores: dict[str, dict[str, float]]) -> None:
    svg = score_bars(scores, "f1")
    width = float(re.findall(r'width="(\d+)"', svg)[0])
    positions = [float(x) for x in re.findall(r'(?:d="M|H| x=")(-?[\d.]+)', svg)]
    assert min(positions) >= 0
    assert max(positions) <= width


def test_bar_lengths_are_proportional_to_values() -> None:
    svg = score_bars({"one": {"mean": 1.0, "sd": 0.0}, "two": {"mean": 2.0, "sd": 0.0}}, "f1")
    first, second = (float(x) for x in re.findall(r'class="bar" d="M[\d.]+ [\d.]+h([\d.]+)', svg))
    assert second == pytest.approx(2 * first, abs=0.2)


def test_write_svg_writes_a_standalone_file(tmp_path: Path) -> None:
    chart = curves({'a <b> " \u202e': [(0, 0), (1, 1)]}, x="x & y", y="y")
    write_svg(tmp_path / "a.svg", chart)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    names = [
        element.text for element in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert {'a <b> " \u202e', "x & y"} <= set(names)
    # A separate file has no color variables of a page.
    assert "var(" not in text
