"""Every page on a phone: tables are complete and need no horizontal scrolling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.browser.test_explain import CUT
from tests.view.test_page import PAGES, pages

from bertkit.view.figures import Figure, Table
from bertkit.view.page import render

WORDS = "a plain text of words"


@pytest.mark.parametrize("name", PAGES)
def test_phone_shows_complete_pages(tab: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "page.html").write_text(render(name, **pages(WORDS)[name]), encoding="utf-8")
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto((tmp_path / "page.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.evaluate(CUT) == []
    # Each cell contains the name of its column.
    for cell in tab.locator(".wide td").all():
        assert cell.get_attribute("data-name")


def test_wide_tables_become_grids_on_phones(tab: Any, tmp_path: Path) -> None:
    html = render("experiment.html", **pages(WORDS)["experiment.html"])
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    tab.goto((tmp_path / "page.html").as_uri())
    display = "one => getComputedStyle(one).display"
    for width, expected in ((1280, "table-row"), (390, "grid")):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.locator(".wide tbody tr").first.evaluate(display) == expected


NARROW = """[...document.querySelectorAll("table:not(.wide) :is(th, td)")].filter(cell => {
    const { width, height } = cell.getBoundingClientRect()
    const text = cell.textContent.trim()
    const line = parseFloat(getComputedStyle(cell).lineHeight) || 20
    return text.length > 8 && height && width < 80 && height > 3 * line
}).map(cell => `${Math.round(cell.getBoundingClientRect().width)} ${cell.textContent.trim()}`)"""
"""Script that lists cells that break their text into many short lines."""

SMALL = """[...document.querySelectorAll("svg.chart")].flatMap(chart => {
    const scale = chart.getBoundingClientRect().width / chart.viewBox.baseVal.width
    return [...chart.querySelectorAll("text")]
        .map(text => scale * parseFloat(getComputedStyle(text).fontSize))
        .filter(size => size && size < 8)
})"""
"""Script that lists sizes of unreadable chart text, in screen pixels."""

SETTINGS = [
    (f"{group}.{name}", value, value)
    for group in ("model.feedforward", "train", "sampling")
    for name, value in (
        ("activation", "gelu"), ("evaluate_samples", "512"), ("learning_rate", "0.0003"),
        ("corpus", "/a/long/path/to/some/corpus/on/this/machine/corpus-of-all-chapters"),
    )
]  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_phone_shows_readable_tables_and_charts(tab: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "page.html").write_text(render(name, **pages(WORDS)[name]), encoding="utf-8")
    tab.set_viewport_size({"width": 400, "height": 844})
    tab.goto((tmp_path / "page.html").as_uri())
    assert tab.evaluate(NARROW) == []
    assert tab.evaluate(SMALL) == []


def test_phone_shows_settings_of_runs(tab: Any, tmp_path: Path) -> None:
    table = Table("Settings", SETTINGS, ["setting", "pretraining", "fine-tuning"])
    values = pages(WORDS)["window.html"] | {"figures": [Figure("Settings", "", [table])]}
    html = render("window.html", **values)
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    tab.set_viewport_size({"width": 400, "height": 844})
    tab.goto((tmp_path / "page.html").as_uri())
    assert tab.evaluate(NARROW) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    for cells, style, value in (("th:first-child", "minWidth", "0"), ("td", "overflowWrap", "")):
        script = f"one => one.forEach(cell => cell.style.{style} = '{value or 'break-word'}')"
        tab.locator(cells).evaluate_all(script)
    assert tab.evaluate(NARROW) != []  # the control
