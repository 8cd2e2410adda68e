"""Reading within bounds: what takes too long or too much is named, and the next file is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.extensions.search import converter
from bertkit.extensions.search.converter import Converter


def page(path: Path, text: str) -> Path:
    path.write_text(f"<p>{text}", encoding="utf-8")
    return path


def test_a_file_is_read_once(tmp_path: Path) -> None:
    file = page(tmp_path / "a.html", "hällo")
    with Converter() as convert:
        assert convert(file).text == "hällo"
        page(file, "changed")
        assert convert(file).text == "hällo"
        assert convert(page(tmp_path / "b.html", "other")).text == "other"
        folder = Path(convert._folder.name)
        assert folder.exists()
    assert not folder.exists()


def test_a_file_that_cannot_be_read_is_named_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.html").write_bytes(b"\xff")
    with Converter() as convert:
        with pytest.raises(DataError, match=r"^a.html:1: not UTF-8"):
            convert(Path("a.html"))
        assert convert(page(Path("b.html"), "next")).text == "next"


def test_time_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(converter, "CHILD", "import time; time.sleep(60)")
    with Converter() as convert:
        with pytest.raises(DataError, match=r"a.html: not read within 0.5 seconds; .* be damaged"):
            convert(page(tmp_path / "a.html", "a"))
        monkeypatch.undo()
        assert convert(page(tmp_path / "b.html", "next")).text == "next"


def test_an_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "CHILD", "import os; os.abort()")
    with Converter() as convert, pytest.raises(DataError, match="reading it crashed"):
        convert(page(tmp_path / "a.html", "a"))


def test_memory_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resource")
    small = (
        "from bertkit.extensions.search import converter\n"
        "converter.MAX_MEMORY_BYTES = 200 << 20\nconverter.main()"
    )
    monkeypatch.setattr(converter, "CHILD", small)
    with Converter() as convert:
        assert convert(page(tmp_path / "a.html", "short")).text == "short"
        with pytest.raises(DataError, match=r"b.html: (reading it|damaged)"):
            convert(page(tmp_path / "b.html", "<b>x</b>" * 500_000))


def test_a_text_that_is_too_long(tmp_path: Path) -> None:
    with Converter() as convert, pytest.raises(DataError, match="the document has 16,777,217 char"):
        convert(page(tmp_path / "a.html", "x" * (converter.MAX_DOCUMENT_CHARACTERS + 1)))
