"""Documents: every kind of file gives its text, and what cannot be searched is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import ConfigError, DataError
from bertkit.extensions.search.converter import MAX_DOCUMENT_CHARACTERS
from bertkit.extensions.search.documents import Document, DocumentColumns, documents, list_files


def rows(path: Path, *found: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in found), encoding="utf-8")
    return path


def test_a_row_is_a_document(tmp_path: Path) -> None:
    file = rows(
        tmp_path / "a.jsonl",
        {"_id": 7, "title": "On wings", "text": "They lift.", "year": 1958, "by": "A. B."},
        {"_id": "x", "title": "", "text": ["One.", "Two."], "year": None, "by": ["A", "B"]},
    )
    found = list(documents([file], DocumentColumns(keep=("year:number", "by"))))
    assert found == [
        Document("7", "On wings\nThey lift.", f"{file}:1", {"year": 1958.0, "by": "A. B."}),
        Document("x", "One. Two.", f"{file}:2", {"year": None, "by": "A B"}),
    ]


def test_columns_are_as_named(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text('name,body,n\n"first, one",It says.,2\nsecond,It asks.,\n', encoding="utf-8")
    columns = DocumentColumns(id="name", text=("body",), keep=("n:number",))
    found = list(documents([table], columns))
    assert [(d.id, d.text, d.fields["n"]) for d in found] == [
        ("first, one", "It says.", 2.0),
        ("second", "It asks.", None),
    ]
    assert found[1].source == f"{table}:3"
    unnamed = rows(tmp_path / "b.jsonl", {"text": "Only text."})
    assert next(documents([unnamed], DocumentColumns())).id == "b.jsonl:1"


def test_files_are_documents_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("# Wings\n\nThey *lift*.", encoding="utf-8")
    (tmp_path / "b.txt").write_text("Plain.", encoding="utf-8")
    page = "<html><head><title>T</title><style>x{}</style></head><body><p>One <b>bold</b>.</p>"
    (tmp_path / "c.html").write_text(page + "<p>Two &amp; three</p></body>", encoding="utf-8")
    found = {d.id: d.text for d in documents([tmp_path], DocumentColumns())}
    assert found == {
        "b.txt": "Plain.",
        "c.html": "T\n\nOne bold.\n\nTwo & three",
        "deep/a.md": "# Wings\n\nThey *lift*.",
    }


def test_a_folder_is_listed_with_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.md", "b.png", "c.png", "Makefile", "d.html", ".hidden.md", "e.rst"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    monkeypatch.setattr("bertkit.extensions.search.document_formats.find_spec", lambda name: None)
    listing = list_files(str(tmp_path))  # text, and alone
    assert [name for _, name in listing.files] == ["a.md", "d.html"]
    assert str(listing) == (
        "files: 2 (1 .html, 1 .md); skipped: 5 (2 .png, 1 .rst (run pip install "
        "'bertkit[search]'), 1 hidden, 1 without a suffix)"
    )
    with pytest.raises(DataError, match=r"e.rst: requires a package .*; run pip"):
        list_files([tmp_path / "e.rst"])
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "a.png").write_text("x")
    with pytest.raises(DataError, match=r"only: the directory contains no supported file \(1 .p"):
        list_files([tmp_path / "only"])
    with pytest.raises(DataError, match=r"a.md: listed twice"):
        list_files([tmp_path, tmp_path / "a.md"])


def test_what_cannot_be_used_stops_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff")
    (tmp_path / "b.md").touch()
    rows(tmp_path / "c.jsonl", {"id": 1, "text": "good"}, {"id": 1, "text": "twice"}, {"id": 2})
    (tmp_path / "d.jsonl").write_text('{"id": 3, "text": "good"}\nno JSON\n', encoding="utf-8")
    (tmp_path / "e.html").write_text("<p>good", encoding="utf-8")
    (tmp_path / "f.html").write_text("<p>", encoding="utf-8")
    bad: list[DataError] = []
    used = [d.id for d in documents([tmp_path], DocumentColumns(), on_error=bad.append)]
    assert used == ["1", "3", "e.html"]
    said = ["a.txt:1: not UTF-8", "b.md: the file is empty", "c.jsonl:2: the id"]
    said += [
        "c.jsonl:3: field 'text' not",
        "d.jsonl:2: invalid JSON",
        "f.html: the document contains",
    ]
    assert len(bad) == len(said)
    for error, words in zip(bad, said, strict=True):
        assert words in str(error)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "a", "text": " \n"}, r"docs.jsonl:2: the document contains no text"),
        ({"id": "a"}, r"docs.jsonl:2: field 'text' not found; known: 'id'"),
        (
            {"id": "a", "texts": "b"},
            r"docs.jsonl:2: .* not found; did you mean 'texts'\?",
        ),
        ({"id": " ", "text": "b"}, r"docs.jsonl:2: the id is empty"),
        ({"id": "a", "text": "b\ud800"}, r"docs.jsonl:2: lone surrogate"),
        (
            {"id": "a", "text": "x" * (MAX_DOCUMENT_CHARACTERS + 1)},
            r"docs.jsonl:2: the document has 16,777,217 char",
        ),
    ],
)
def test_unusable_documents_are_named(row: dict[str, str], said: str, tmp_path: Path) -> None:
    file = rows(tmp_path / "docs.jsonl", {"id": "0", "text": "good"}, row)
    with pytest.raises(DataError, match=said):
        list(documents([file], DocumentColumns()))


def test_what_is_no_number_is_named(tmp_path: Path) -> None:
    for value in ("12a", True, [1], "nan", float("inf"), 10**400):
        file = rows(tmp_path / "a.jsonl", {"id": "a", "text": "b", "year": value})
        with pytest.raises(DataError, match=r"a.jsonl:1: field 'year' must be a number"):
            list(documents([file], DocumentColumns(keep=("year:number",))))
    with pytest.raises(DataError, match="field 'years' not found; did you mean 'year'"):
        list(documents([file], DocumentColumns(keep=("years",))))


@pytest.mark.parametrize("keep", [("a", "a:number"), ("",), (":text",), ("id",)])
def test_kept_fields_have_one_name(keep: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="keep"):
        DocumentColumns(keep=keep).fields()


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"a.md:1: not UTF-8"):
        list(documents([file], DocumentColumns()))
    other = tmp_path / "b.png"
    other.write_text("x")
    with pytest.raises(DataError, match=r"b.png: unsupported file type; use .*\.html"):
        list(documents([other], DocumentColumns()))
