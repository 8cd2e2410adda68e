"""The benchmark table of the README agrees with itself and with the page of all benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_settings import section

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
FIGURE = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?: (s|ms|texts/s|tokens/s|MB/s|minutes))?\s*$")


def rows() -> list[list[str]]:
    text = section(README.read_text(encoding="utf-8"), "Benchmarks")
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    return [row for row in cells if len(row) == 4 and row[3].endswith("×")]


def test_ratio_matches_values() -> None:
    assert 5 <= len(rows()) <= 8
    bertkit_cell = ""
    for row in rows():
        bertkit_cell = row[1] or bertkit_cell
        pair = [FIGURE.search(cell) for cell in (bertkit_cell, row[2])]
        assert pair[0], row
        assert pair[1], row
        bertkit_value, baseline_value = (
            float(match[1].replace(",", "")) for match in pair if match
        )
        ratio = (
            baseline_value / bertkit_value
            if pair[0][2] in ("s", "ms", "minutes")
            else bertkit_value / baseline_value
        )
        # the figures are rounded to one or two digits
        assert abs(ratio - float(row[3].split()[0])) <= 0.07 * ratio, row


def test_baseline_uses_best_settings() -> None:
    text = section(README.read_text(encoding="utf-8"), "Benchmarks")
    for words in ("as it comes", "default", "later run", "days before", "hours before"):
        assert words not in text, words


def test_values_occur_in_benchmarks_page() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    figures = [match[1] for row in rows() for cell in row[1:3] if (match := FIGURE.search(cell))]
    assert len(figures) == 2 * len(rows())
    assert [figure for figure in figures if not re.search(rf"(?<![\d.,]){figure}\b", page)] == []
