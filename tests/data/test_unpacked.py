"""Compressed files that expand to a very large size are rejected by each reader."""

from __future__ import annotations

import gzip
import io
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import pdf

from bertkit.data.document_readers import documents as raw_documents
from bertkit.data.document_readers import parquet_rows, read_text
from bertkit.data.question_answering import read_questions
from bertkit.data.row_readers import Rows
from bertkit.data.tagged_text import read_conll
from bertkit.errors import DataError
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.search.document_formats import convert
from bertkit.extensions.search.documents import DocumentColumns, documents
from bertkit.storage import EXPANSION, FLOOR

FEW = 1 << 20
SIZE = 2 * FEW


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reject smaller files, so that the tests are fast."""
    monkeypatch.setattr("bertkit.storage.FLOOR", FEW)
    monkeypatch.setattr("bertkit.extensions.search.document_formats.FLOOR", FEW)


def bomb(path: Path, line: str, head: str = "", tail: str = "") -> Path:
    """Write a .gz file of equal lines that unpacks to hundreds of times its size."""
    content = head + line * (SIZE // len(line)) + tail
    path.write_bytes(gzip.compress(content.encode(), 9))
    assert len(content) > 2 * EXPANSION * path.stat().st_size
    return path


Reader = Callable[[Path], Any]
READERS: dict[str, tuple[Reader, str, str, str]] = {
    "a.txt.gz": (read_text, "a word\n", "", ""),
    "b.txt.gz": (lambda path: list(raw_documents([path])), "a word\n", "", ""),
    "c.jsonl.gz": (lambda path: list(raw_documents([path])), '{"text": "a"}\n', "", ""),
    "d.tsv.gz": (Rows.read, "a good film\t1\n", "", ""),
    "e.csv.gz": (Rows.read, "a good film,1\n", "text,label\n", ""),
    "f.jsonl.gz": (Rows.read, '{"text": "a", "label": 1}\n', "", ""),
    "g.json.gz": (lambda path: read_questions(path, labeled=True), " \n", '{"data": []', "}"),
    "h.conll.gz": (read_conll, "a O\n", "", ""),
    "i.html.gz": (convert, "<p>a\n", "", ""),
    "j.md.gz": (lambda path: list(documents([path], DocumentColumns())), "# a\n", "", ""),
    "k.ipynb.gz": (convert, " \n", "{", "}"),
    "l.rst.gz": (convert, "a\n", "", ""),
    "m.txt.gz": (Vectors.load, "a 1 2 3\n", "", ""),
}


@pytest.mark.parametrize("name", READERS)
def test_reader_rejects_gzip_bomb(name: str, tmp_path: Path) -> None:
    read, *parts = READERS[name]
    path = bomb(tmp_path / name, *parts)
    with pytest.raises(DataError, match=f"{name}: .* bytes expand to more than"):
        read(path)


def test_default_limit_rejects_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.storage.FLOOR", FLOOR)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a word\n" * (FLOOR // 7), 9))
    assert len(read_text(path)) < FLOOR
    path.write_bytes(gzip.compress(b"a word\n" * (FLOOR // 7 + 1), 9))
    with pytest.raises(DataError, match=r"a\.txt\.gz: .* expand to more than 16,777,216"):
        read_text(path)


def test_reader_accepts_text_that_compresses_well(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    words = np.random.default_rng(0).integers(0, 2000, SIZE // 8).astype(np.uint16)
    text = "".join(f"word{word} " for word in words.tolist()) + "\n"
    path.write_bytes(gzip.compress(text.encode(), 6))
    assert len(text) > FEW
    assert read_text(path) == text


def docx(path: Path, body: str) -> Path:
    docx_module = pytest.importorskip("docx", reason="pip install 'bertkit[search]'")
    plain = io.BytesIO()
    docx_module.Document().save(plain)
    with zipfile.ZipFile(plain) as given, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for item in given.infolist():
            content = given.read(item)
            if item.filename == "word/document.xml":
                content = content.replace(b"<w:body>", b"<w:body>" + body.encode())
            made.writestr(item.filename, content)
    return path


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("<w:p><w:r><w:t>" + "a" * 8 * SIZE + "</w:t></w:r></w:p>", "[0-9,]+ bytes"),
        ("<w:p><w:r><w:t>a</w:t></w:r></w:p>" * 1001, "1,000 paragraphs and rows"),
        ("<w:tbl>" + "<w:tr/>" * 1001 + "</w:tbl>", "1,000 paragraphs and rows"),
        ("<w:p/>" * (SIZE // 6), "1,048,576 bytes of XML"),
    ],
    ids=["long", "paragraphs", "rows", "empty"],
)
def test_docx_rejects_large_content(
    body: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.extensions.search.document_formats.UNPACKED_XML", FEW)
    monkeypatch.setattr("bertkit.extensions.search.document_formats.PARAGRAPHS_OF_DOCX", 1000)
    path = docx(tmp_path / "a.docx", body)
    with pytest.raises(DataError, match=f"a.docx: the file unpacks to more than {limit}"):
        convert(path)


def test_docx_paragraphs_are_read_in_linear_time(tmp_path: Path) -> None:
    path = docx(tmp_path / "a.docx", "<w:p><w:r><w:t>a</w:t></w:r></w:p>" * 5000)
    begin = time.process_time()
    assert convert(path).text.count("a") == 5000
    # A search through all styles took 20 s.
    assert time.process_time() - begin < 5


def test_pdf_rejects_large_streams(tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="pip install 'bertkit[search]'")
    plain = pdf(["a word"])
    content = zlib.compress(b"BT (a) Tj ET\n" * (80 * FEW // 13), 9)
    head, _, rest = plain.partition(b"stream\n")
    start = head.rindex(b"<<")
    rest = rest[rest.index(b"\nendstream") :]
    (tmp_path / "a.pdf").write_bytes(
        head[:start]
        + b"<< /Filter /FlateDecode /Length %d >>\nstream\n" % len(content)
        + content
        + rest
    )
    with pytest.raises(DataError, match=r"a.pdf: "):
        list(documents([tmp_path / "a.pdf"], DocumentColumns()))


@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_rejects_bomb(dictionary: bool, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pip install 'bertkit[cleaning]'")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["a" * 1000] * (SIZE // 1000)})
    parquet.write_table(table, path, use_dictionary=dictionary, compression="gzip")
    assert EXPANSION * path.stat().st_size < SIZE
    for read in (parquet_rows, lambda path: raw_documents([path])):
        with pytest.raises(DataError, match=r"a.parquet: .* bytes expand to more than"):
            list(read(path))
