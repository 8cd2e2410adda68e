"""Documents of tables and files, and errors for invalid rows and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import ConfigError, DataError
from bertkit.extensions.search.converter import MAX_DOCUMENT_CHARACTERS
from bertkit.extensions.search.documents import Document, DocumentColumns, documents, list_files

LONG = "x" * (MAX_DOCUMENT_CHARACTERS + 1)


def write_rows(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in records), encoding="utf-8")
    return path


def test_documents_returns_one_document_per_row(tmp_path: Path) -> None:
    file = write_rows(
        tmp_path / "a.jsonl",
        {"_id": 7, "title": "On wings", "text": "They lift.", "year": 1958, "by": "A. B."},
        {"_id": "x", "title": "", "text": ["One.", "Two."], "year": None, "by": ["A", "B"]},
    )
    results = list(documents([file], DocumentColumns(keep=("year:number", "by"))))
    assert results == [
        Document("7", "On wings\nThey lift.", f"{file}:1", {"year": 1958.0, "by": "A. B."}),
        Document("x", "One. Two.", f"{file}:2", {"year": None, "by": "A B"}),
    ]


def test_documents_uses_specified_columns(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text('name,body,n\n"first, one",It says.,2\nsecond,It asks.,\n', encoding="utf-8")
    columns = DocumentColumns(id="name", text=("body",), keep=("n:number",))
    results = list(documents([table], columns))
    assert [(d.id, d.text, d.fields["n"]) for d in results] == [
        ("first, one", "It says.", 2.0),
        ("second", "It asks.", None),
    ]
    assert results[1].source == f"{table}:3"
    unnamed = write_rows(tmp_path / "b.jsonl", {"text": "Only text."})
    assert next(documents([unnamed], DocumentColumns())).id == "b.jsonl:1"


def test_documents_uses_relative_paths_as_ids(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("# Wings\n\nThey *lift*.", encoding="utf-8")
    (tmp_path / "b.txt").write_text("Plain.", encoding="utf-8")
    page = "<html><head><title>T</title><style>x{}</style></head><body><p>One <b>bold</b>.</p>"
    (tmp_path / "c.html").write_text(page + "<p>Two &amp; three</p></body>", encoding="utf-8")
    results = {d.id: d.text for d in documents([tmp_path], DocumentColumns())}
    assert results == {
        "b.txt": "Plain.",
        "c.html": "T\n\nOne bold.\n\nTwo & three",
        "deep/a.md": "# Wings\n\nThey *lift*.",
    }


def test_list_files_reports_skipped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.md", "b.png", "c.png", "Makefile", "d.html", ".hidden.md", "e.rst"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    monkeypatch.setattr("bertkit.extensions.search.document_formats.find_spec", lambda name: None)
    # The directory may be a string, without a list around it.
    listing = list_files(str(tmp_path))
    assert [name for _, name in listing.files] == ["a.md", "d.html"]
    assert str(listing) == (
        "files: 2 (1 .html, 1 .md); skipped: 5 (2 .png, 1 .rst (run pip install "
        "'bertkit[search]'), 1 hidden, 1 without a suffix)"
    )
    with pytest.raises(DataError, match=r"e.rst: this file type requires a package .*; run pip"):
        list_files([tmp_path / "e.rst"])
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "a.png").write_text("x")
    with pytest.raises(DataError, match=r"only: the directory contains no supported file \(1 .p"):
        list_files([tmp_path / "only"])
    with pytest.raises(DataError, match=r"a.md: listed twice"):
        list_files([tmp_path, tmp_path / "a.md"])


def test_documents_continues_after_invalid_files_and_rows(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff")
    (tmp_path / "b.md").touch()
    write_rows(
        tmp_path / "c.jsonl", {"id": 1, "text": "good"}, {"id": 1, "text": "twice"}, {"id": 2}
    )
    (tmp_path / "d.jsonl").write_text('{"id": 3, "text": "good"}\nno JSON\n', encoding="utf-8")
    (tmp_path / "e.html").write_text("<p>good", encoding="utf-8")
    (tmp_path / "f.html").write_text("<p>", encoding="utf-8")
    errors: list[DataError] = []
    used = [d.id for d in documents([tmp_path], DocumentColumns(), on_error=errors.append)]
    assert used == ["1", "3", "e.html"]
    expected = ["a.txt:1: not UTF-8", "b.md: the file is empty", "c.jsonl:2: the id"]
    expected += [
        "c.jsonl:3: field 'text' not",
        "d.jsonl:2: invalid JSON",
        "f.html: the document contains",
    ]
    assert len(errors) == len(expected)
    for error, message in zip(errors, expected, strict=True):
        assert message in str(error)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": "a", "text": " \n"}, r"docs.jsonl:2: the document contains no text"),
        ({"id": "a"}, r"docs.jsonl:2: field 'text' not found; set text_column= to .*; known: 'id'"),
        ({"id": "a", "texts": "b"}, r"docs.jsonl:2: .*; did you mean 'texts'\?"),
        ({"id": " ", "text": "b"}, r"docs.jsonl:2: the id is empty"),
        ({"id": "a", "text": "b\ud800"}, r"docs.jsonl:2: lone surrogate"),
        ({"id": "a", "text": LONG}, r"docs.jsonl:2: the document has 16,777,217 characters"),
    ],
)
def test_documents_rejects_invalid_rows(row: dict[str, str], expected: str, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "docs.jsonl", {"id": "0", "text": "good"}, row)
    with pytest.raises(DataError, match=expected):
        list(documents([file], DocumentColumns()))


def test_documents_rejects_invalid_numbers_in_fields(tmp_path: Path) -> None:
    for value in ("12a", True, [1], "nan", float("inf"), 10**400):
        file = write_rows(tmp_path / "a.jsonl", {"id": "a", "text": "b", "year": value})
        with pytest.raises(DataError, match=r"a.jsonl:1: field 'year' must be a number"):
            list(documents([file], DocumentColumns(keep=("year:number",))))
    with pytest.raises(
        DataError, match="field 'years' not found; set keep= to a field; did you mean 'year'"
    ):
        list(documents([file], DocumentColumns(keep=("years",))))


@pytest.mark.parametrize("keep", [("a", "a:number"), ("",), (":text",), ("id",)])
def test_document_columns_rejects_invalid_keep(keep: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="keep"):
        DocumentColumns(keep=keep).fields()


def test_documents_rejects_unsupported_files(tmp_path: Path) -> None:
    other = tmp_path / "b.png"
    other.write_text("x")
    with pytest.raises(DataError, match=r"b.png: unsupported file type; use .*\.html"):
        list(documents([other], DocumentColumns()))
