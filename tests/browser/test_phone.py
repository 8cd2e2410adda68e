"""Every page on a phone: no table is cut, and none must be moved sideways to be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.browser.test_explain import CUT
from tests.view.test_page import PAGES, pages

from bertkit.view.page import render

WORDS = "a plain text of words"


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_every_page_whole(tab: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "page.html").write_text(render(name, **pages(WORDS)[name]), encoding="utf-8")
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto((tmp_path / "page.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.evaluate(CUT) == []
    for cell in tab.locator(".wide td").all():  # each says what it is, as its column would
        assert cell.get_attribute("data-name")


def test_wide_tables_are_tables_where_there_is_room(tab: Any, tmp_path: Path) -> None:
    html = render("compare.html", **pages(WORDS)["compare.html"])
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    tab.goto((tmp_path / "page.html").as_uri())
    display = "one => getComputedStyle(one).display"
    for width, expected in ((1280, "table-row"), (390, "grid")):
        tab.set_viewport_size({"width": width, "height": 844})
        assert tab.locator(".wide tbody tr").first.evaluate(display) == expected
