"""Pages stand alone, and say what they are given."""

from pathlib import Path

from bertkit.recipes.page import table, write_page


def test_tables_tell_text_from_numbers() -> None:
    found = table([("a <b>", 0.12345)], head=("name", "score"))
    assert found == ('<table><tr><th>name<th>score<tr><td>a &lt;b&gt;<td class="n">0.123</table>')
    assert table([("a",)]) == "<table><tr><td>a</table>"


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "Title & more", ["<h1>x</h1>"], style="h1 { color: red }")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>Title &amp; more</title>" in page
    assert "h1 { color: red }" in page
    assert "http" not in page
    assert "src=" not in page
