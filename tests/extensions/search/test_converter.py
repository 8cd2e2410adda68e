"""The converter limits time, memory and text length, and reads the next file after an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.extensions.search import converter
from bertkit.extensions.search.converter import Converter


def write_page(path: Path, text: str) -> Path:
    path.write_text(f"<p>{text}", encoding="utf-8")
    return path


def test_converter_reads_each_file_once(tmp_path: Path) -> None:
    file = write_page(tmp_path / "a.html", "hällo")
    with Converter() as convert:
        assert convert(file).text == "hällo"
        write_page(file, "changed")
        assert convert(file).text == "hällo"
        assert convert(write_page(tmp_path / "b.html", "other")).text == "other"
        folder = Path(convert._folder.name)
        assert folder.exists()
    assert not folder.exists()


def test_converter_reports_unreadable_file_by_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.html").write_bytes(b"\xff")
    with Converter() as convert:
        with pytest.raises(DataError, match=r"^a.html:1: not UTF-8"):
            convert(Path("a.html"))
        assert convert(write_page(Path("b.html"), "next")).text == "next"


def test_converter_rejects_file_after_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converter, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(converter, "CHILD", "import time; time.sleep(60)")
    with Converter() as convert:
        with pytest.raises(DataError, match=r"a.html: reading it took over 0.5 s; .* be damaged"):
            convert(write_page(tmp_path / "a.html", "a"))
        monkeypatch.undo()
        assert convert(write_page(tmp_path / "b.html", "next")).text == "next"


def test_converter_reports_crash_of_child_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converter, "CHILD", "import os; os.abort()")
    with Converter() as convert, pytest.raises(DataError, match="reading it crashed"):
        convert(write_page(tmp_path / "a.html", "a"))


def test_converter_rejects_file_above_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("resource")
    code = (
        "from bertkit.extensions.search import converter\n"
        "converter.MAX_MEMORY_BYTES = 200 << 20\nconverter.main()"
    )
    monkeypatch.setattr(converter, "CHILD", code)
    with Converter() as convert:
        assert convert(write_page(tmp_path / "a.html", "short")).text == "short"
        with pytest.raises(DataError, match=r"b.html: (reading|damaged)"):
            convert(write_page(tmp_path / "b.html", "<b>x</b>" * 500_000))


def test_converter_rejects_too_long_document(tmp_path: Path) -> None:
    with Converter() as convert, pytest.raises(DataError, match="the document has 16,777,217 char"):
        convert(write_page(tmp_path / "a.html", "x" * (converter.MAX_DOCUMENT_CHARACTERS + 1)))
