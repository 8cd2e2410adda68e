"""The speed table of the README agrees with itself and has ratios of single runs only."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_settings import section

README = Path(__file__).parents[2] / "README.md"
FIGURE = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?: (s|ms|texts/s|tokens/s|MB/s|minutes))?\s*$")


def rows() -> list[list[str]]:
    text = section(README.read_text(encoding="utf-8"), "Speed")
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    return [row for row in cells if len(row) == 4 and row[3].endswith("×")]


def test_ratio_is_that_of_its_figures() -> None:
    assert len(rows()) >= 10
    ours = ""
    for row in rows():
        ours = row[1] or ours
        pair = [FIGURE.search(cell) for cell in (ours, row[2])]
        assert pair[0], row
        assert pair[1], row
        mine, baseline = (float(match[1].replace(",", "")) for match in pair if match)
        ratio = baseline / mine if pair[0][2] in ("s", "ms", "minutes") else mine / baseline
        # the figures are rounded to one or two digits
        assert abs(ratio - float(row[3].split()[0])) <= 0.07 * ratio, row


def test_baseline_has_its_best_settings_in_the_same_run() -> None:
    text = section(README.read_text(encoding="utf-8"), "Speed").replace("include default", "")
    for words in ("as it comes", "default", "later run", "days before", "hours before"):
        assert words not in text, words
