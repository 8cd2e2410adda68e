"""Document readers: complete text, bounded memory, and errors for unusable files."""

from __future__ import annotations

import gzip
import json
import re
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data import document_readers as readers
from bertkit.data.document_readers import RawDocument, Span, documents, read, spans
from bertkit.data.paths import files
from bertkit.errors import DataError

TEXT = st.text(st.sampled_from("ab.?é”\n\n\n \r\t𝄞"), max_size=200)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READ_BYTES", 16)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def texts(path: Path, *, field: str = "text") -> list[str]:
    return [d.text for d in documents([path], field=field)]


def concat_parts(found: list[RawDocument]) -> list[str]:
    """Concatenate the parts of each document."""
    whole: list[str] = []
    for document in found:
        if document.continues:
            whole[-1] += document.text
        else:
            whole.append(document.text)
    return whole


# ---- File selection


def test_files_lists_nested_files_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.jsonl", "a/y.txt.gz", ".git/x.txt", "a/.x.txt", "notes.md"):
        write(tmp_path / name, '{"text": "A."}')
    names = [str(f.relative_to(tmp_path)) for f in files([tmp_path])]
    assert names == ["a/y.txt.gz", "a/z.jsonl", "b.txt"]


def test_language_suffix_is_text_if_passed_by_name(tmp_path: Path) -> None:
    english = write(tmp_path / "train.en.gz", "A dog.\n")
    german = write(tmp_path / "train.de", "Ein Hund.\n")
    assert [document.text for document in documents([english, german])] == [
        "A dog.\n",
        "Ein Hund.\n",
    ]
    with pytest.raises(DataError, match=r"no \.txt or \.jsonl or \.parquet file in this directory"):
        files([tmp_path])
    with pytest.raises(DataError, match="unsupported file type"):
        files([write(tmp_path / "train.bin", "A")])


def test_files_rejects_unusable_paths(tmp_path: Path) -> None:
    write(tmp_path / "empty" / "x.md", "x")
    empty = write(tmp_path / "nothing.txt", "")
    text = write(tmp_path / "a.txt", "A.")
    for paths, message in (
        ([tmp_path / "gone.txt"], r"gone\.txt: no such file"),
        ([tmp_path / "empty"], r"empty: no \.txt or \.jsonl or \.parquet file"),
        ([tmp_path / "empty" / "x.md"], r"x\.md: unsupported file type"),
        ([empty], r"nothing\.txt: the file is empty"),
        ([text, text], r"a\.txt: the file is passed twice"),
        ([], "pass at least one file"),
    ):
        with pytest.raises(DataError, match=message):
            files(paths)


# ---- Documents


def test_blank_lines_option_splits_text_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "One.\nTwo.\n\n \t\nThree.\r\n\r\nFour.")
    assert texts(path) == [path.read_bytes().decode()]
    found = list(documents([path], blank_lines="documents"))
    assert [d.text.strip() for d in found] == ["One.\nTwo.", "Three.", "Four."]
    assert [d.line for d in found] == [1, 5, 7]
    assert not any(d.continues for d in found)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_documents_ignore_byte_order_mark(tmp_path: Path, name: str) -> None:
    assert texts(write(tmp_path / name, b"\xef\xbb\xbfA.")) == ["A."]
    row = b'\xef\xbb\xbf{"text": "B."}'
    assert texts(write(tmp_path / name.replace("txt", "jsonl"), row)) == ["B."]


def test_jsonl_rows_are_documents_with_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "A"}\n\r\n{"id": 3, "text": "B\\n"}\n{"text": ""}')
    assert [(d.text, d.line) for d in documents([path])] == [("A", 1), ("B\n", 3), ("", 4)]
    other = write(tmp_path / "b.jsonl", '{"the body": "A", "text": 3}\n')
    assert texts(other, field="the body") == ["A"]


@pytest.mark.usefixtures("small_blocks")
@given(text=TEXT)
def test_parts_of_a_document_contain_its_text(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = write(tmp_path_factory.mktemp("t") / "a.txt", text or "a")
    if not text.strip():
        return
    found = list(documents([path]))
    assert not found[0].continues
    assert all(d.continues for d in found[1:])
    assert "".join("".join(d.text for d in found).split()) == "".join(text.split())


def by_blank_lines(text: str) -> list[str]:
    parts = re.split(r"\n(?:[^\S\n]*\n)+", text)
    return ["".join(p.split()) for p in parts if p.strip()]


@pytest.mark.usefixtures("small_blocks")
@given(text=TEXT, size=st.integers(1, 60))
def test_blank_lines_split_documents_at_any_block_size(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int
) -> None:
    path = write(tmp_path_factory.mktemp("t") / "a.txt", "\n" + text + "a")
    file_spans = spans(path, size)
    assert [p.start for p in file_spans[1:]] == [p.end for p in file_spans[:-1]]
    found = [d for p in file_spans for d in read(p, field="", blank_lines="documents")]
    whole = ["".join(t.split()) for t in concat_parts(found)]
    assert whole == by_blank_lines("\n" + text + "a")


@given(values=st.lists(st.text(max_size=30), min_size=1, max_size=20), size=st.integers(1, 99))
def test_jsonl_spans_contain_each_row_once(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], size: int
) -> None:
    lines = "\n".join(json.dumps({"text": v}) for v in values)
    path = write(tmp_path_factory.mktemp("t") / "a.jsonl", lines)
    file_spans = spans(path, size)
    found = [d.text for p in file_spans for d in read(p, field="text", blank_lines="paragraphs")]
    assert found == values
    assert size > 40 or len(values) < 10 or len(file_spans) > 2


def test_long_text_is_split_at_paragraphs_then_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "READ_BYTES", 200)
    lines = [f"Sentence {i} goes\non. “So it does.”\n" for i in range(50)]
    ends = {t.rstrip()[-1] for t in texts(write(tmp_path / "a.txt", "".join(lines)))}
    assert ends == {"”"}
    found = texts(write(tmp_path / "b.txt", "\n".join(lines)))
    assert len(found) > 5
    assert all(t.endswith("\n\n") for t in found[:-1])


def test_memory_is_bounded_for_long_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.storage.FLOOR", 1 << 25)
    path = write(tmp_path / "a.txt.gz", b"A sentence without an end of line goes on. " * 500_000)
    tracemalloc.start()
    try:
        size = sum(len(d.text) for d in documents([path]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 43 * 500_000
    assert peak < 8 * readers.READ_BYTES


# ---- Unusable text


LATIN = "Ein Satz.\nDer zweite hört nicht auf.\n".encode("latin-1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("a.txt", LATIN, r"a\.txt:2: not UTF-8 \(0xf6 at byte 22\); .*iconv"),
     ("a.txt.gz", LATIN, r"a\.txt\.gz:2: not UTF-8 \(0xf6 at byte 22\)"),
     ("a.jsonl", b'{"text": "A"}\n{"text": "\xff"}\n', r"a\.jsonl:2: not UTF-8 \(0xff at byte 24",),
     ("a.txt", b"PNG\n\0\1\2", r"a\.txt:2: binary file \(zero byte at byte 4\)"),
     ("a.txt", "A.\n".encode("utf-16"), r"a\.txt:1: expected UTF-8, got UTF-16.*iconv -f UTF-16"),
     ("a.txt", " \n\n\t", r"a\.txt: the file contains no text"),
     ("a.jsonl", "\n\n", r"a\.jsonl: the file contains no text"),
     ("a.jsonl", '{"text": "A"}\n{"txt": "B"}\n',
      r"a\.jsonl:2: no field 'text'; did you mean 'txt'"),
     ("a.jsonl", '{"text": "A"}\n\n{"text": 3}',
      r"a\.jsonl:3: field 'text' must contain text, got int"),
     ("a.jsonl", '{"text": "A"}\n{"text": "B"\n', r"a\.jsonl:2: invalid JSON"),
     ("a.jsonl", '{"text": "A"}\n\x0c\n{"text": "B"}\n', r"a\.jsonl:2: invalid JSON"),
     ("a.jsonl", '{"text": "A"}\n{"text": "B", "n": NaN}\n',
      r"2: invalid JSON .*null instead of NaN"),
     ("a.jsonl", '{"text": "A", "n": ' + "[" * 100_000, r"a\.jsonl:1: invalid JSON"),
     ("a.jsonl", '{"text": "A"} {"text": "B"}\n', r"a\.jsonl:1: invalid JSON"),
     ("a.jsonl", '[{"text": "A"}]', r"a\.jsonl:1: expected a JSON object, got list"),
     ("a.jsonl", '{"text": "\\ud800"}', r"a\.jsonl:1: lone surrogate")],
)  # fmt: skip
def test_documents_reports_position_of_unusable_text(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        list(documents([write(tmp_path / name, content)]))
    assert "\n" not in str(caught.value)


def test_documents_rejects_damaged_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(bytes(range(1, 128)) * 999)
    for content in (whole[:-20], b"not gzip at all", whole[:50] + b"xxxx" + whole[54:]):
        path = tmp_path / "a.txt.gz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.txt\.gz: damaged or truncated"):
            list(documents([path]))


def test_error_line_counts_from_start_of_file(tmp_path: Path) -> None:
    good = '{"text": "A sentence."}\n' * 100
    path = write(tmp_path / "a.jsonl", good + "{}\n" + good)
    with pytest.raises(DataError, match=r"a\.jsonl:101: no field"):
        [list(read(p, field="text", blank_lines="paragraphs")) for p in spans(path, 300)]
    text = write(tmp_path / "a.txt", b"A line.\n" * 100 + b"\xff\n")
    with pytest.raises(DataError, match=r"a\.txt:101: not UTF-8 \(0xff at byte 800\)"):
        [list(read(p, field="", blank_lines="paragraphs")) for p in spans(text, 90)]


def test_documents_rejects_rows_beyond_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "READ_BYTES", 1 << 10)
    monkeypatch.setattr(readers, "LONGEST_LINE", 1 << 14)
    path = write(tmp_path / "a.jsonl", '{"text": "A"}\n{"text": "' + "a" * (1 << 15))
    with pytest.raises(DataError, match=r"a\.jsonl:2: the row exceeds"):
        list(documents([path]))
    assert spans(path, 1 << 12) == [Span(path, 0, path.stat().st_size)]


# ---- .parquet


def test_parquet_rows_are_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    monkeypatch.setattr(readers, "PARQUET_BATCH_ROWS", 2)
    path = tmp_path / "a.parquet"
    words = ["A", "B\n", "", "é", "E"]
    table = pa.table({"id": range(5), "text": words, "wide": pa.array(words, pa.large_string())})
    parquet.write_table(table, path, row_group_size=3)
    found = list(documents([tmp_path]))
    assert [(d.text, d.line) for d in found] == list(zip(words, range(1, 6), strict=True))
    assert texts(path, field="wide") == words
    assert spans(path, 10) == [Span(path, 0, path.stat().st_size)]


def test_documents_rejects_unusable_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["A", None], "n": [1, 2]}), path)
    for field, message in (
        ("txt", r"a\.parquet: no column 'txt'; did you mean 'text'\?"),
        ("n", r"a\.parquet: column 'n' must contain text, got int64"),
        ("text", r"a\.parquet:2: column 'text' is null"),
    ):
        with pytest.raises(DataError, match=message):
            texts(path, field=field)
    whole = path.read_bytes()
    for damaged in (whole[:-9], b"PAR1" + b"x" * 90 + b"PAR1", b"no such thing"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.parquet: invalid \.parquet file"):
            texts(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"require pyarrow; run pip install 'bertkit\[cleaning\]'"):
        texts(path)
