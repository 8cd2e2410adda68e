"""Figures of the course agree with the text next to them."""

from __future__ import annotations

import re
from pathlib import Path

CHAPTER = Path(__file__).parents[2] / "docs" / "course" / "03-one-vector.md"
MODELS = ["lstm", "lstm-attention", "transformer"]


def curves() -> list[list[float]]:
    """Return the scores of each model by length, from the coordinates of the figure."""
    figure = CHAPTER.with_suffix(".svg").read_text(encoding="utf-8")
    (low, high) = (
        float(re.search(rf'y="([\d.]+)"[^>]*>{value}</text>', figure)[1])  # type: ignore[index]
        for value in (40, 100)
    )
    lines = re.findall(r'<path class="line c\d" d="M([^h"]+)"/>', figure)
    points = [[float(point.split()[1]) for point in line.split("L")] for line in lines]
    return [[40 + 60 * (low - y) / (low - high) for y in line] for line in points]


def test_table_of_chapter_three_matches_its_figure() -> None:
    page = CHAPTER.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d-]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    figure = CHAPTER.with_suffix(".svg").read_text(encoding="utf-8")
    assert [name for name in re.findall(">([^<]+)</text>", figure) if name in MODELS] == MODELS
    table = [[float(row[column]) for row in rows] for column in (1, 2, 3)]
    for shown, line in zip(table, curves(), strict=True):
        assert all(abs(a - b) < 0.2 for a, b in zip(shown, line, strict=True))


def test_text_of_chapter_three_names_the_order_of_the_curves() -> None:
    page = " ".join(CHAPTER.read_text(encoding="utf-8").split())
    lstm, attention, transformer = curves()
    assert "Up to 10 letters, only the LSTM without attention makes errors" in page
    assert lstm[1] < 95
    assert min(attention[1], transformer[1]) > 99
    assert (
        "From 11 letters on, the LSTM with attention is best and the Transformer is worst" in page
    )
    for group in (2, 3, 4):
        assert attention[group] > lstm[group] > transformer[group]
