"""Documents: every kind of file gives its text, and what cannot be searched is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bertkit.data.documents import LONGEST, Columns, Document, documents, html_text
from bertkit.errors import ConfigError, DataError


def rows(path: Path, *found: Any) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in found), encoding="utf-8")
    return path


def test_a_row_is_a_document(tmp_path: Path) -> None:
    file = rows(
        tmp_path / "a.jsonl",
        {"_id": 7, "title": "On wings", "text": "They lift.", "year": 1958, "by": "A. B."},
        {"_id": "x", "title": "", "text": ["One.", "Two."], "year": None, "by": ["A", "B"]},
    )
    found = list(documents([file], Columns(keep=("year:number", "by"))))
    assert found == [
        Document("7", "On wings\nThey lift.", f"{file}:1", {"year": 1958.0, "by": "A. B."}),
        Document("x", "One. Two.", f"{file}:2", {"year": None, "by": "A B"}),
    ]


def test_columns_are_as_named(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text('name,body,n\n"first, one",It says.,2\nsecond,It asks.,\n', encoding="utf-8")
    columns = Columns(id="name", text=("body",), keep=("n:number",))
    found = list(documents([table], columns))
    assert [(d.id, d.text, d.fields["n"]) for d in found] == [
        ("first, one", "It says.", 2.0),
        ("second", "It asks.", None),
    ]
    assert found[1].where == f"{table}:3"
    unnamed = rows(tmp_path / "b.jsonl", {"text": "Only text."})
    assert next(documents([unnamed], Columns())).id == "b.jsonl:1"


def test_files_are_documents_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("# Wings\n\nThey *lift*.", encoding="utf-8")
    (tmp_path / "b.txt").write_text("Plain.", encoding="utf-8")
    page = "<html><head><title>T</title><style>x{}</style></head><body><p>One <b>bold</b>.</p>"
    (tmp_path / "c.html").write_text(page + "<p>Two &amp; three</p></body>", encoding="utf-8")
    found = {d.id: d.text for d in documents([tmp_path], Columns())}
    assert found == {
        "b.txt": "Plain.",
        "c.html": "T\nOne bold.\nTwo & three",
        "deep/a.md": "# Wings\n\nThey *lift*.",
    }


def test_nothing_of_a_page_that_is_not_seen() -> None:
    page = "<script>alert('x')</script><ul><li>a<li>b</ul><template>no</template>c<br>d<!-- e -->"
    assert html_text(page) == "a\nb\nc\nd"
    assert html_text("a<p>b</p>c<div>d<p>e</p></div>f") == "a\nb\nc\nd\ne\nf"


def test_pages_need_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bs4", None)
    with pytest.raises(DataError, match="needs Beautiful Soup; pip install"):
        html_text("<p>a")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "a", "text": " \n"}, r"docs.jsonl:2: no text in this document"),
        ({"id": "a"}, r"docs.jsonl:2: no field 'text'; known: 'id'"),
        ({"id": "a", "texts": "b"}, r"docs.jsonl:2: no field 'text'; did you mean 'texts'\?"),
        ({"id": " ", "text": "b"}, r"docs.jsonl:2: the id is empty"),
        ({"id": "a", "text": "b\ud800"}, r"docs.jsonl:2: half of a surrogate pair"),
        ({"id": "a", "text": "x" * (LONGEST + 1)}, r"docs.jsonl:2: a document of 16,777,217 char"),
    ],
)
def test_unusable_documents_are_named(row: dict[str, str], said: str, tmp_path: Path) -> None:
    file = rows(tmp_path / "docs.jsonl", {"id": "0", "text": "good"}, row)
    with pytest.raises(DataError, match=said):
        list(documents([file], Columns()))


def test_what_is_no_number_is_named(tmp_path: Path) -> None:
    for value in ("12a", True, [1], "nan", float("inf"), 10**400):
        file = rows(tmp_path / "a.jsonl", {"id": "a", "text": "b", "year": value})
        with pytest.raises(DataError, match=r"a.jsonl:1: field 'year' holds .* no number"):
            list(documents([file], Columns(keep=("year:number",))))
    with pytest.raises(DataError, match="no field 'years'; did you mean 'year'"):
        list(documents([file], Columns(keep=("years",))))


@pytest.mark.parametrize("keep", [("a", "a:number"), ("",), (":text",), ("id",)])
def test_kept_fields_have_one_name(keep: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="keep"):
        Columns(keep=keep).fields()


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"a.md:1: not UTF-8"):
        list(documents([file], Columns()))
    other = tmp_path / "b.pdf"
    other.write_text("x")
    with pytest.raises(DataError, match=r"b.pdf: unknown kind of file; text is read from .*\.html"):
        list(documents([other], Columns()))
