"""Each file format returns its text, headings and tables, and never includes other files."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import pdf

from bertkit.errors import DataError
from bertkit.extensions.search import document_formats as formats
from bertkit.extensions.search.document_formats import Extracted, convert, html, markdown, notebook


def outline(extracted: Extracted) -> list[tuple[int, str]]:
    """Return the level and title of each heading, and check its position in the text."""
    for heading in extracted.headings:
        heading_text = " ".join(extracted.text[heading.start : heading.end].split())
        assert heading.title in heading_text
    return [(heading.level, heading.title) for heading in extracted.headings]


def test_markdown_headings_exclude_code_and_front_matter() -> None:
    text = (
        "---\ntitle: x\n---\n# One #\n\ntext\n\n```sh\n# no heading\n```\nTwo words\n---\n\n"
        "- item\n---\n\n| a |\n|---|\n\n#hashtag\n### *Three*\r\nend\n\na\nb\n===\n"
    )
    extracted = markdown(text)
    assert extracted.text == text
    assert outline(extracted) == [(1, "One"), (2, "Two words"), (3, "*Three*")]


@given(st.text(alphabet="#=-`~ \n\tab"))
def test_markdown_headings_are_in_text_order(text: str) -> None:
    extracted = markdown(text)
    outline(extracted)
    ends = [0, *(position for h in extracted.headings for position in (h.start, h.end))]
    assert ends == sorted(ends)


def test_html_returns_only_visible_text() -> None:
    page = "<script>alert('x')</script><ul><li>a<li>b</ul><template>no</template>c<br>d<!-- e -->"
    assert html(page).text == "a\nb\n\nc\nd"
    assert html("a<p>b</p>c<div>d<p>e</p></div>f").text == "a\n\nb\n\nc\n\nd\n\ne\n\nf"
    assert html("<p>One\n <b>bold</b>\nline.<pre>two\n  lines</pre>").text == (
        "One bold line.\n\ntwo\nlines"
    )
    assert html("<p>a\ue003b \ue000c").text == "a b c"
    assert html("<nav><a>Home</a><a>Shop</a></nav><p>a").text == "a"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<div role=navigation>Home Shop</div><p>a", "a"),
        ("<ul class='top menu'><li><a>Home</a><li><a>Shop</a></ul><p>a", "a"),
        ("<div id=navbar><a>Home</a> | <a>Shop</a></div><p>a", "a"),
        ("<body><header>Logo <a>Shop</a></header><main><p>a</main><footer>(c)</footer>", "a"),
        ("<header><h1>Title</h1><nav>Home</nav></header><p>a", "Title\n\na"),
        ("<article><header>By</header><p>a<footer>Notes</footer></article>", "By\n\na\n\nNotes"),
        ("<div class=menu><p>Soup of <a>lentils</a>, 5 euros</div>", "Soup of lentils, 5 euros"),
        ("<ul><li><a>One</a><li><a>Two</a></ul>", "One\nTwo"),
    ],
)
def test_html_ignores_navigation(page: str, text: str) -> None:
    assert html(page).text == text


def test_html_keeps_headings_and_tables() -> None:
    page = (
        "<title>T</title><h1><svg><title>Icon</title></svg>One <i>more</i></h1><p>text</p>"
        "<h3>Deep</h3><table><tr><th>Name"
        "<th>Age</tr><tr><td>Ada</td><td>36</td></tr><tr><td></td><td>7</td></tr></table>"
    )
    extracted = html(page)
    assert outline(extracted) == [(0, "T"), (1, "One more"), (3, "Deep")]
    assert extracted.text.endswith("Deep\n\nName | Age\nAda | 36\n | 7")


def test_html_requires_beautiful_soup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bs4", None)
    with pytest.raises(DataError, match="requires Beautiful Soup; run pip install"):
        html("<p>a")


def test_convert_pdf_returns_pages_and_headings(tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="pip install 'bertkit[search]'")
    file = tmp_path / "a.pdf"
    file.write_bytes(
        pdf(["Methods\nWe mea-\nsure.", "", "Results\nGood."], outline=[("Methods", 0), ("No", 1)])
    )
    extracted = convert(file)
    assert extracted.text == "Methods\nWe measure.\n\nResults\nGood."
    assert extracted.pages == (0, 21, 21)
    assert outline(extracted) == [(1, "Methods")]
    packed = tmp_path / "b.pdf.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert convert(packed) == extracted


def test_convert_rejects_unreadable_pdf(tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf", reason="pip install 'bertkit[search]'")
    file = tmp_path / "a.pdf"
    for password, message in (
        ("secret", "the file is encrypted; save it without a password"),
        ("", None),
    ):
        writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(["Some text."])))
        writer.encrypt(password, "owner", algorithm="AES-256")
        writer.write(file)
        # With only an owner password, everyone may read the file.
        if message is None:
            assert convert(file).text == "Some text."
        else:
            with pytest.raises(DataError, match=f"a.pdf: {message}"):
                convert(file)
    file.write_bytes(pdf(["", ""]))
    with pytest.raises(DataError, match=r"a.pdf: the file contains no text \(pages: 2\).* run OCR"):
        convert(file)
    for damaged in (b"%PDF-1.4\n%%EOF", b"no pdf at all", pdf(["Some text."])[:200]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a.pdf: (damaged, or not .pdf|contains no text)"):
            convert(file)


def test_convert_docx_returns_headings_and_tables(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx", reason="pip install 'bertkit[search]'")
    document = docx.Document()
    document.add_heading("Report", 0)
    document.add_heading("Results", 2)
    document.add_paragraph("It works.")
    table = document.add_table(2, 2)
    for cell, text in zip(table._cells, ["Name", "Age", "Ada", "36"], strict=True):
        cell.text = text
    document.save(str(tmp_path / "a.docx"))
    extracted = convert(tmp_path / "a.docx")
    assert extracted.text == "Report\n\nResults\n\nIt works.\n\nName | Age\nAda | 36"
    assert outline(extracted) == [(0, "Report"), (2, "Results")]


RUN = "<w:r><w:t>a</w:t></w:r>"
BLOCK = f"<w:p>{RUN}</w:p>"
CELL = f"<w:tbl><w:tr><w:tc>{BLOCK}</w:tc></w:tr></w:tbl>"
BOX = f"<w:pict><w:txbxContent>{BLOCK}</w:txbxContent></w:pict>"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (f"<w:p><w:ins>{RUN}</w:ins><w:del><w:r><w:delText>b</w:delText></w:r></w:del></w:p>", "a"),
        (f"<w:p><w:moveFrom>{RUN}</w:moveFrom><w:moveTo>{RUN}</w:moveTo></w:p>", "a"),
        (f"<w:p><w:sdt><w:sdtContent>{RUN}</w:sdtContent></w:sdt></w:p>", "a"),
        (f"<w:p><w:smartTag>{RUN}</w:smartTag></w:p>", "a"),
        (f"<w:p><w:fldSimple>{RUN}</w:fldSimple></w:p>", "a"),
        (f"<w:sdt><w:sdtContent><w:customXml>{BLOCK}</w:customXml></w:sdtContent></w:sdt>", "a"),
        (f"<w:sdt><w:sdtContent>{CELL}</w:sdtContent></w:sdt>", "a"),
        (f"<w:tbl><w:tr><w:tc>{BLOCK}{CELL}</w:tc></w:tr></w:tbl>", "a a"),
        (f"<w:p>{RUN}<w:r>{BOX}<m:Fallback>{BOX}</m:Fallback></w:r></w:p>", "a\n\na"),
    ],
)  # fmt: skip
def test_convert_docx_returns_text_in_each_element(markup: str, text: str, tmp_path: Path) -> None:
    docx = pytest.importorskip("docx", reason="pip install 'bertkit[search]'")
    document = docx.Document()
    main = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    copies = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    body = docx.oxml.parse_xml(f'<w:body xmlns:w="{main}" xmlns:m="{copies}">{markup}</w:body>')
    document.element.body[:0] = list(body)
    document.save(str(tmp_path / "a.docx"))
    assert convert(tmp_path / "a.docx").text == text


def test_convert_docx_ignores_external_entities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docx = pytest.importorskip("docx", reason="pip install 'bertkit[search]'")
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    plain = io.BytesIO()
    document = docx.Document()
    document.add_paragraph("WHAT")
    document.save(plain)
    file = tmp_path / "a.docx"
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(file, "w") as new:
        for part in old.infolist():
            data = old.read(part)
            if part.filename == "word/document.xml":
                entity = f'<!DOCTYPE x [<!ENTITY e SYSTEM "file://{secret}">]>'.encode()
                head, _, rest = data.partition(b"?>")
                data = head + b"?>" + entity + rest.replace(b"WHAT", b"it is &e;")
            new.writestr(part, data)
    assert "secret" not in convert(file).text
    monkeypatch.setattr(formats, "UNPACKED", 1000)
    with pytest.raises(DataError, match=r"a.docx: the file unpacks to more than 1,000 bytes"):
        convert(file)
    file.write_text("no zip")
    with pytest.raises(DataError, match=r"a.docx: damaged, or not .docx"):
        convert(file)


RST = """\
Title
=====

Some *text* with :ref:`a role <x>`.

Part
----

- one
- two

.. note:: Mind this.

.. unknown:: It is kept.

.. code-block:: python

   print("code")

===== =====
a     b
===== =====
c     d
===== =====
"""


def test_convert_rst_returns_headings_and_text(tmp_path: Path) -> None:
    pytest.importorskip("docutils", reason="pip install 'bertkit[search]'")
    file = tmp_path / "a.rst"
    file.write_text(RST)
    extracted = convert(file)
    assert outline(extracted) == [(0, "Title"), (1, "Part")]
    for text in ("a role", "one\n\ntwo", "Mind this.", "It is kept.", 'print("code")', "a | b"):
        assert text in extracted.text


def test_convert_rst_ignores_included_files(tmp_path: Path) -> None:
    pytest.importorskip("docutils", reason="pip install 'bertkit[search]'")
    secret = tmp_path / "secret"
    secret.write_text("the hidden words")
    file = tmp_path / "a.rst"
    file.write_text(
        f"Text.\n\n.. include:: {secret}\n\n.. literalinclude:: {secret}\n\n.. raw:: html\n"
        f"   :file: {secret}\n\n.. csv-table::\n   :file: {secret}\n\n"
        f".. csv-table::\n   :url: file://{secret}\n\n.. raw:: html\n\n   <b>markup</b>\n"
    )
    text = convert(file).text
    assert text.startswith("Text.")
    assert "hidden words" not in text


def test_notebook_returns_cell_sources() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Load\n", "\n", "First."]},
        {"cell_type": "code", "source": "x = 1", "outputs": [{"text": "unseen"}]},
        {"cell_type": "markdown", "source": "\n## Fit"},
    ]
    extracted = notebook(json.dumps({"cells": cells}))
    assert extracted.text == "# Load\n\nFirst.\n\nx = 1\n\n## Fit"
    assert outline(extracted) == [(1, "Load"), (2, "Fit")]
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["a\n", "b"]}]}]}
    assert notebook(json.dumps(old)).text == "a\nb"


@pytest.mark.parametrize("text", ["[]", "{", '{"cells": 1}', '{"cells": [{}]}', "[" * 100_000])
def test_notebook_rejects_invalid_json(text: str) -> None:
    with pytest.raises(DataError, match="invalid notebook"):
        notebook(text)


def test_convert_removes_control_characters(tmp_path: Path) -> None:
    file = tmp_path / "a.html"
    file.write_text("<p>a&#1;b")
    assert "\x01" not in convert(file).text
    file.write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"a.html:1: not UTF-8"):
        convert(file)


def test_markdown_front_matter_is_ignored_with_any_newline() -> None:
    for end in ("\n", "\r\n"):
        text = end.join(["---", "title: x", "---", "# One", "a", ""])
        assert [h.title for h in markdown(text).headings] == ["One"]


@pytest.mark.parametrize("lines", [1, 2, 3, 4])
def test_markdown_rule_below_paragraph_is_not_heading(lines: int) -> None:
    text = "".join(f"line {chr(97 + n)}\n" for n in range(lines)) + "---\n"
    assert len(markdown(text).headings) == (lines == 1)
