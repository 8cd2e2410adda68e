"""Functions that read documents from files of raw text.

Supported formats are `.txt` and `.jsonl` in UTF-8, with or without a byte order mark and optionally
compressed (`.gz`), and `.parquet`. Files are read in blocks of about 1 MiB, or in batches of
`.parquet` rows, so that memory use does not depend on the size of a file. Invalid input raises a
DataError that names the file and the line.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from bertkit import console
from bertkit.data.paths import files, suffix
from bertkit.errors import DataError, did_you_mean
from bertkit.storage import check_file, check_unpacked, open_gzip

BlankLines = Literal["paragraphs", "documents"]
"""Meaning of blank lines in a `.txt` file.

With "paragraphs", the file is one document, and blank lines separate its paragraphs. With
"documents", blank lines separate documents (the input format of Google's BERT).
"""

STDIN = Path(console.STDIN)
"""Path of stdin. The content of stdin is cached, so that it can be read several times."""

READ_BYTES = 1 << 20
"""Number of bytes that are read at a time."""

PARQUET_BATCH_ROWS = 1 << 10
"""Number of `.parquet` rows that are decoded at a time."""

LONGEST_LINE = 64 << 20
"""Maximum size in bytes of a `.jsonl` row. Each process keeps one row in memory."""

MAX_UNPACKED_BYTES = 2 << 30
"""Maximum uncompressed size in bytes of a .gz file that is read into memory as a whole."""


@dataclass(frozen=True)
class RawDocument:
    """Document, or a part of a long document.

    `continues` is true if this part continues the previous part. `line` is the line at which the
    part begins, counted from 1 at the start of the span that was read.
    """

    text: str
    file: Path
    line: int
    continues: bool = False


@dataclass(frozen=True)
class Span:
    """Part of a file: the bytes from `start` to `end` (exclusive).

    A span ends at the end of a paragraph or, for `.jsonl`, of a row. Compressed files and
    `.parquet` files always have a single span, whose `end` is the size of the file on disk.
    """

    file: Path
    start: int
    end: int


def documents(
    paths: Sequence[str | Path], *, field: str = "text", blank_lines: BlankLines = "paragraphs"
) -> Iterator[RawDocument]:
    """Yield the documents in files and directories, in order. Long documents are split into parts.

    Args:
        paths: The files and directories.
        field: Field or column that contains the text in `.jsonl` and `.parquet` files. Each row is
            a document.
        blank_lines: Meaning of blank lines in `.txt` files: "paragraphs" if a file is one document,
            or "documents" if blank lines separate documents.

    Raises:
        DataError: If a file is invalid. The message names the file and the line.
    """
    for file in files(paths):
        span = Span(file, 0, file.stat().st_size)
        yield from read(span, field=field, blank_lines=blank_lines)


def spans(file: Path, size: int) -> list[Span]:
    """Split a file into spans of about `size` bytes. A compressed or .parquet file is one span."""
    end = file.stat().st_size
    bounds = [0]
    if file.suffix != ".gz" and suffix(file) != ".parquet":
        with file.open("rb") as stream:
            while bounds[-1] + 1.5 * size < end:
                start = bounds[-1] + size
                stream.seek(start)
                block = stream.read(min(READ_BYTES, size))
                find = _first_row_end if suffix(file) == ".jsonl" else _text_end
                while not (at := find(block)) and len(block) < min(end - start, LONGEST_LINE):
                    block += stream.read(READ_BYTES)
                if at == 0 or start + at >= end:
                    break
                bounds.append(start + at)
    return [Span(file, a, b) for a, b in zip(bounds, [*bounds[1:], end], strict=True)]


def read(span: Span, *, field: str, blank_lines: BlankLines) -> Iterator[RawDocument]:
    """Yield the documents in a span.

    If the span begins within a document, `continues` is true for the first part.

    Args:
        span: The span to read.
        field: Field or column that contains the text in `.jsonl` and `.parquet` files.
        blank_lines: Meaning of blank lines in `.txt` files.

    Raises:
        DataError: If the file is invalid or contains no text.
    """
    if suffix(span.file) == ".jsonl":
        parts = _json_documents(span, field)
    elif suffix(span.file) == ".parquet":
        parts = _parquet_documents(span, field)
    elif blank_lines == "documents":
        parts = _blank_line_documents(span)
    else:
        parts = _file_document(span)
    empty = True
    for document in parts:
        empty = False
        yield document
    if empty and span.start == 0 and span.end == span.file.stat().st_size:
        raise DataError(f"{span.file}: the file contains no text; remove the file")


# ---- Blocks


@dataclass(frozen=True)
class _Block:
    """Block of complete lines of a file, as UTF-8 bytes (`data`) and as decoded `text`."""

    data: bytes
    text: str
    line: int


def read_text(path: Path) -> str:
    """Read the complete text of a file or of stdin. A .gz file is decompressed.

    Raises:
        DataError: If the file is missing, empty, damaged, or not UTF-8, or if the uncompressed size
            of a .gz file exceeds `MAX_UNPACKED_BYTES`.
    """
    if path == STDIN:
        size = sys.maxsize
    elif not path.exists():
        raise DataError(f"{path}: no such file; check the spelling")
    elif path.is_dir():
        raise DataError(f"{path}: expected a file, got a directory; pass a file")
    elif not path.is_file():
        raise DataError(f"{path}: not a regular file; pipe its content to stdin and pass - instead")
    else:
        size = path.stat().st_size
    texts: list[str] = []
    unpacked = 0
    for block in blocks(Span(path, 0, size)):
        texts.append(block.text)
        unpacked += len(block.data)
        if path.suffix == ".gz" and unpacked > MAX_UNPACKED_BYTES:
            raise DataError(
                f"{path}: the uncompressed size exceeds the limit of {MAX_UNPACKED_BYTES >> 30} "
                "GiB; decompress or split the file"
            )
    text = "".join(texts)
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    return text


def numbered(path: Path) -> list[tuple[int, str]]:
    """Return the lines of a file that are not blank, with their line numbers, starting at 1.

    Only a newline character ends a line. Other separators (such as U+2028 or a form feed) are part
    of the text.

    Raises:
        DataError: In the same cases as `read_text`.
    """
    return [(number, line) for number, line in enumerate(read_lines(path), 1) if line.strip()]


def read_lines(path: Path) -> list[str]:
    """Return all lines of a file, including empty lines.

    Raises:
        DataError: In the same cases as `read_text`.
    """
    lines = read_text(path).removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def blocks(span: Span) -> Iterator[_Block]:
    """Read a span in blocks. Each block ends at the end of a paragraph or a row.

    Raises:
        DataError: If the file is damaged or not UTF-8, or if a row is too long.
    """
    rows = suffix(span.file) == ".jsonl"
    offset, line, rest = span.start, 1, b""
    is_compressed = span.file.suffix == ".gz"
    left = sys.maxsize if is_compressed else span.end - span.start
    with open_bytes(span.file) as stream:
        if span.start:
            stream.seek(span.start)
        while True:
            try:
                data = stream.read(min(READ_BYTES, left))
            except (EOFError, OSError, zlib.error) as error:
                if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                    raise
                raise DataError(
                    f"{span.file}: damaged or truncated ({error}); download it again"
                ) from None
            left -= len(data)
            last = left == 0 or len(data) < READ_BYTES
            data = rest + data
            at = len(data) if last else data.rfind(b"\n") + 1 if rows else _text_end(data)
            data, rest = data[:at], data[at:]
            if len(rest) > LONGEST_LINE:
                raise DataError(
                    f"{span.file}:{_line(span, line)}: the row exceeds {LONGEST_LINE >> 20} MiB; "
                    "check that the file contains one JSON object per line"
                )
            if data:
                text = _decode(data, span, offset, line)
                has_bom = offset == 0 and text.startswith("\ufeff")
                yield _Block(data[3:] if has_bom else data, text[1:] if has_bom else text, line)
                offset += len(data)
                line += data.count(b"\n")
            if last:
                return


def open_bytes(file: Path) -> IO[bytes]:
    """Open a file or stdin for reading bytes. A .gz file is decompressed while it is read."""
    if file == STDIN:
        return io.BytesIO(_read_once(sys.stdin.buffer))
    return open_gzip(file, DataError) if file.suffix == ".gz" else file.open("rb")


@lru_cache(maxsize=1)
def _read_once(stream: IO[bytes]) -> bytes:
    return stream.read()


def _decode(data: bytes, span: Span, offset: int, line: int) -> str:
    is_utf16 = offset == 0 and data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if is_utf16:
        raise DataError(
            f"{span.file}:1: expected UTF-8, got UTF-16 (byte 0); run "
            f"iconv -f UTF-16 -t UTF-8 {span.file.name} > utf8-{span.file.name}"
        )
    zero = data.find(b"\0")
    if zero >= 0:
        raise DataError(
            f"{span.file}:{_line(span, line + data.count(10, 0, zero))}: binary file (zero byte at "
            f"byte {offset + zero}); remove the file"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
        raise DataError(
            f"{span.file}:{_line(span, line + data.count(10, 0, at))}: not UTF-8 "
            f"(0x{data[at]:02x} at byte {offset + at}); convert the file, for example with "
            f"iconv -f WINDOWS-1252 -t UTF-8 {span.file.name} > utf8-{span.file.name}"
        ) from None


def _line(span: Span, line: int) -> int:
    """Convert a line number in a span to a line number in the file, for an error message."""
    if span.start == 0:
        return line
    with span.file.open("rb") as stream:
        left = span.start
        while left > 0:
            data = stream.read(min(READ_BYTES, left))
            line += data.count(b"\n")
            left -= len(data)
    return line


_SENTENCE_END = re.compile(rb"""[.!?](?:["')\]]|\xe2\x80[\x99\x9d]|\xc2\xbb)*[ \t\r]*\n""")


def _text_end(data: bytes) -> int:
    """Return the best offset at which to end a block, in the second half of the data if possible.

    It is the end of the last paragraph. If the data contains no end of a paragraph, it is the end
    of the last sentence, line, word, or character.
    """
    half = len(data) // 2
    at = max(data.rfind(b"\n\n", half) + 2, data.rfind(b"\n\r\n", half) + 3)
    if at > 3:
        return at
    for sentence in reversed(list(_SENTENCE_END.finditer(data, max(half, len(data) - (1 << 16))))):
        return sentence.end()
    for end in (b"\n", b" "):
        at = data.rfind(end, half) + 1
        if at:
            return at
    at = len(data)
    while at > 0 and data[at - 1] & 0xC0 == 0x80:
        at -= 1
    return max(at - 1, 0)


def _first_row_end(data: bytes) -> int:
    return data.find(b"\n") + 1


# ---- Documents


def _file_document(span: Span) -> Iterator[RawDocument]:
    continues = span.start > 0
    for block in blocks(span):
        if block.text.strip():
            yield RawDocument(block.text, span.file, block.line, continues)
            continues = True


_BLANK = re.compile(r"\n(?:[^\S\n]*\n)+")
_ENDS_BLANK = re.compile(r"\n[^\S\n]*\n\s*\Z")


def _blank_line_documents(span: Span) -> Iterator[RawDocument]:
    before = _before(span)
    for block in blocks(span):
        text, line = block.text, block.line
        # A blank line may span two blocks.
        edge = before + text[: len(text) - len(text.lstrip())]
        continues = bool(before.strip()) and not _ENDS_BLANK.search(edge)
        start = 0
        for blank in _BLANK.finditer(text):
            if text[start : blank.start()].strip():
                yield RawDocument(text[start : blank.start()], span.file, line, continues)
            continues = False
            line += text.count("\n", start, blank.end())
            start = blank.end()
        if text[start:].strip():
            yield RawDocument(text[start:], span.file, line, continues)
        before = (before + text)[-256:]


def _before(span: Span) -> str:
    """Return up to 256 bytes before a span, which show whether a document begins at its start."""
    if span.start == 0:
        return ""
    with span.file.open("rb") as stream:
        stream.seek(max(span.start - 256, 0))
        return stream.read(span.start - stream.tell()).decode("utf-8", "ignore")


@lru_cache
def _row_decoder(field: str) -> msgspec.json.Decoder[Any]:
    row = msgspec.defstruct("Row", [("text", str)], rename={"text": field})
    return msgspec.json.Decoder(row)


def _json_documents(span: Span, field: str) -> Iterator[RawDocument]:
    decoder = _row_decoder(field)
    for block in blocks(span):
        lines = [(i, row) for i, row in enumerate(block.data.split(b"\n")) if row.strip(b" \t\r")]
        try:
            rows = decoder.decode_lines(block.data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            rows = []
        if len(rows) != len(lines):
            for i, raw in lines:
                _check_row(raw, field, f"{span.file}:{_line(span, block.line + i)}")
        for (i, _), row in zip(lines, rows, strict=True):
            yield RawDocument(row.text, span.file, block.line + i)


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `.parquet` file as dicts of all columns.

    Raises:
        DataError: If the file is missing or damaged.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file; check the spelling")
    if path.is_dir():
        raise DataError(f"{path}: expected a file, got a directory; pass a file")
    with _parquet(path) as table:
        for rows in _batches(path, table):
            yield from rows.to_pylist()


def _batches(path: Path, table: Any, **options: Any) -> Iterator[Any]:
    """Yield batches of rows of a `.parquet` file, and check their total uncompressed size."""
    size, unpacked = path.stat().st_size, 0
    for rows in table.iter_batches(PARQUET_BATCH_ROWS, **options):
        unpacked += rows.nbytes
        check_unpacked(path, size, unpacked, DataError)
        yield rows


def _parquet_documents(span: Span, field: str) -> Iterator[RawDocument]:
    """Yield each row of a column as a document whose `line` is the number of the row, from 1."""
    with _parquet(span.file) as table:
        columns = table.schema_arrow
        if field not in columns.names:
            near = did_you_mean(field, columns.names)
            raise DataError(f"{span.file}: no column {field!r}; {near}")
        kind = columns.field(field).type
        if str(kind) not in ("string", "large_string"):
            raise DataError(f"{span.file}: column {field!r} must contain text, got {kind}")
        line = 0
        for rows in _batches(span.file, table, columns=[field]):
            for text in rows.column(field).to_pylist():
                line += 1
                if text is None:
                    raise DataError(f"{span.file}:{line}: column {field!r} is null; add a text")
                yield RawDocument(text, span.file, line)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """Open a `.parquet` file.

    Raises:
        DataError: If the file is damaged, or pyarrow is not installed.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(
            f"{path}: .parquet files require pyarrow; run pip install 'bertkit[cleaning]'"
        ) from None
    check_file(path, DataError, most=sys.maxsize)
    try:
        with parquet.ParquetFile(path) as table:
            groups = map(table.metadata.row_group, range(table.num_row_groups))
            size = sum(group.total_byte_size for group in groups)
            check_unpacked(path, path.stat().st_size, size, DataError)
            yield table
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: invalid .parquet file ({error}); download it again") from None


def _check_row(raw: bytes, field: str, location: str) -> None:
    """Raise a DataError that states the reason if a row is invalid."""
    row = json_object(raw, location)
    if field not in row:
        raise DataError(f"{location}: no field {field!r}; {did_you_mean(field, row)}")
    if not isinstance(row[field], str):
        kind = type(row[field]).__name__
        raise DataError(f"{location}: field {field!r} must contain text, got {kind}")
    try:
        _row_decoder(field).decode(raw)
    except msgspec.MsgspecError as error:
        # Python's json module accepts NaN, which is not JSON.
        raise DataError(f"{location}: invalid JSON ({error}); use null instead of NaN") from None


def json_object(raw: bytes, location: str) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        DataError: If the line is not a JSON object, or contains a lone surrogate.
    """
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location}: invalid JSON ({error}); use one object per line") from None
    if not isinstance(row, dict):
        kind = type(row).__name__
        raise DataError(f"{location}: expected a JSON object, got {kind}; write it as {{...}}")
    # Python decodes lone surrogates in JSON, but cannot encode them as UTF-8.
    if b"\\u" in raw or b"\xed" in raw:
        check_surrogates(location, json.dumps(row, ensure_ascii=False))
    return row


def check_surrogates(location: str, *texts: str) -> None:
    """Check that texts contain no lone surrogates, which cannot be encoded as UTF-8.

    Raises:
        DataError: If a text contains a lone surrogate.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{location}: lone surrogate (\\ud800 to \\udfff); use the complete surrogate "
                "pair, or \\ufffd"
            ) from None
