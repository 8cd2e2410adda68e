"""Raw text as documents.

What is read: `.txt` and `.jsonl`, each also as `.gz`, in UTF-8, with or without a byte order
mark, and `.parquet`. A file is read in blocks of about a mebibyte, `.parquet` by its row groups, so
memory does not grow with it. Whatever is wrong is a DataError that names file and line.
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
"""What a blank line of a `.txt` file divides: the paragraphs of its one document, or documents
(the input format of Google's BERT)."""

STDIN = Path(console.STDIN)
"""What is read once, and kept."""

READ_BYTES = 1 << 20
"""Bytes read at a time."""

PARQUET_BATCH_ROWS = 1 << 10
"""Rows of `.parquet` decoded at a time."""

LONGEST_LINE = 64 << 20
"""Bytes one row of `.jsonl` may have; it must fit in memory, once for each process."""

MAX_UNPACKED_BYTES = 2 << 30
"""Largest unpacked size in bytes of a .gz file that is read at once."""


@dataclass(frozen=True)
class RawDocument:
    """A document, or a part of a long one: `continues` if it goes on with the one before.

    Units: `line` counts from 1 and from the beginning of the span that was read.
    """

    text: str
    file: Path
    line: int
    continues: bool = False


@dataclass(frozen=True)
class Span:
    """Bytes [start, end) of a file, cut at the end of a paragraph, or for `.jsonl` of a row.

    A compressed file is always whole, as is `.parquet`; `end` is then its compressed size.
    """

    file: Path
    start: int
    end: int


def documents(
    paths: Sequence[str | Path], *, field: str = "text", blank_lines: BlankLines = "paragraphs"
) -> Iterator[RawDocument]:
    """Every document of these files and folders, in order.

    A `.txt` file is one document, or with `blank_lines="documents"` one between each two blank
    lines; long ones come in parts. A row of `.jsonl` or `.parquet` is one, its text in `field`.
    Raises: DataError naming file and line.
    """
    for file in files(paths):
        span = Span(file, 0, file.stat().st_size)
        yield from read(span, field=field, blank_lines=blank_lines)


def spans(file: Path, size: int) -> list[Span]:
    """Cut a file into spans of about `size` bytes; a compressed file stays whole."""
    end = file.stat().st_size
    cuts = [0]
    if file.suffix != ".gz" and suffix(file) != ".parquet":
        with file.open("rb") as stream:
            while cuts[-1] + 1.5 * size < end:
                start = cuts[-1] + size
                stream.seek(start)
                block = stream.read(min(READ_BYTES, size))
                find = _first_row_end if suffix(file) == ".jsonl" else _text_end
                while not (at := find(block)) and len(block) < min(end - start, LONGEST_LINE):
                    block += stream.read(READ_BYTES)
                if at == 0 or start + at >= end:
                    break
                cuts.append(start + at)
    return [Span(file, a, b) for a, b in zip(cuts, [*cuts[1:], end], strict=True)]


def read(span: Span, *, field: str, blank_lines: BlankLines) -> Iterator[RawDocument]:
    """The documents that begin in a span; one cut by its beginning comes as `continues`."""
    if suffix(span.file) == ".jsonl":
        pieces = _json_documents(span, field)
    elif suffix(span.file) == ".parquet":
        pieces = _parquet_documents(span, field)
    elif blank_lines == "documents":
        pieces = _blank_line_documents(span)
    else:
        pieces = _one_document(span)
    empty = True
    for document in pieces:
        empty = False
        yield document
    if empty and span.start == 0 and span.end == span.file.stat().st_size:
        raise DataError(f"{span.file}: the file holds no text; leave it out")


# ---- blocks


@dataclass(frozen=True)
class _Block:
    """Whole lines, checked: `data` in UTF-8, and the same as `text`."""

    data: bytes
    text: str
    line: int


def read_text(path: Path) -> str:
    """Return the text of a complete file, also of a .gz file, or of stdin.

    Raises:
        DataError: If the file is missing, empty, damaged, or not UTF-8, or if it unpacks to more
            than `MAX_UNPACKED_BYTES` bytes.
    """
    if path == STDIN:
        size = sys.maxsize
    elif not path.exists():
        raise DataError(f"{path}: no such file; check the spelling")
    elif path.is_dir():
        raise DataError(f"{path}: a folder; name a file")
    elif not path.is_file():
        raise DataError(f"{path}: a pipe or a device; give it on stdin, and name -")
    else:
        size = path.stat().st_size
    texts: list[str] = []
    unpacked = 0
    for block in blocks(Span(path, 0, size)):
        texts.append(block.text)
        unpacked += len(block.data)
        if path.suffix == ".gz" and unpacked > MAX_UNPACKED_BYTES:
            raise DataError(
                f"{path}: unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB, all of which must "
                "fit in memory; unpack or split it"
            )
    text = "".join(texts)
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    return text


def numbered(path: Path) -> list[tuple[int, str]]:
    """The lines of a whole file that hold text, each with its number, from 1.

    A newline alone ends a line: what else may separate lines (U+2028, a form feed) stands in texts.
    Raises: DataError as `read_text` does.
    """
    return [(number, line) for number, line in enumerate(read_lines(path), 1) if line.strip()]


def read_lines(path: Path) -> list[str]:
    """All lines of a whole file, empty ones too. Raises: DataError as `read_text` does."""
    lines = read_text(path).removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]


def blocks(span: Span) -> Iterator[_Block]:
    """The bytes of a span in blocks that end where a paragraph or row does."""
    rows = suffix(span.file) == ".jsonl"
    offset, line, rest = span.start, 1, b""
    packed = span.file.suffix == ".gz"
    left = sys.maxsize if packed else span.end - span.start
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
                    f"{span.file}: damaged or cut short ({error}); get the file again"
                ) from None
            left -= len(data)
            last = left == 0 or len(data) < READ_BYTES
            data = rest + data
            at = len(data) if last else _row_end(data) if rows else _text_end(data)
            data, rest = data[:at], data[at:]
            if len(rest) > LONGEST_LINE:
                raise DataError(
                    f"{span.file}:{_line(span, line)}: a row of more than "
                    f"{LONGEST_LINE >> 20} MiB; is this really .jsonl, one object a line?"
                )
            if data:
                text = _decode(data, span, offset, line)
                mark = offset == 0 and text.startswith("\ufeff")
                yield _Block(data[3:] if mark else data, text[1:] if mark else text, line)
                offset += len(data)
                line += data.count(b"\n")
            if last:
                return


def open_bytes(file: Path) -> IO[bytes]:
    """Open the bytes of a file, unpacked if it is .gz, or those of stdin."""
    if file == STDIN:
        return io.BytesIO(_read_once(sys.stdin.buffer))
    return open_gzip(file, DataError) if file.suffix == ".gz" else file.open("rb")


@lru_cache(maxsize=1)
def _read_once(stream: IO[bytes]) -> bytes:
    return stream.read()


def _decode(data: bytes, span: Span, offset: int, line: int) -> str:
    wide = offset == 0 and data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if wide:
        raise DataError(
            f"{span.file}:1: UTF-16, not UTF-8 (byte 0); convert it: "
            f"iconv -f UTF-16 -t UTF-8 {span.file.name} > utf8-{span.file.name}"
        )
    zero = data.find(b"\0")
    if zero >= 0:
        raise DataError(
            f"{span.file}:{_line(span, line + data.count(10, 0, zero))}: a zero byte at byte "
            f"{offset + zero}: this is a binary file, not text; leave it out"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
        raise DataError(
            f"{span.file}:{_line(span, line + data.count(10, 0, at))}: not UTF-8 "
            f"(0x{data[at]:02x} at byte {offset + at}); convert it, for example: "
            f"iconv -f WINDOWS-1252 -t UTF-8 {span.file.name} > utf8-{span.file.name}"
        ) from None


def _line(span: Span, line: int) -> int:
    """The line number in the whole file; only errors need it, so only they count lines."""
    if span.start == 0:
        return line
    with span.file.open("rb") as stream:
        left = span.start
        while left > 0:
            block = stream.read(min(READ_BYTES, left))
            line += block.count(b"\n")
            left -= len(block)
    return line


_SENTENCE_END = re.compile(rb"""[.!?](?:["')\]]|\xe2\x80[\x99\x9d]|\xc2\xbb)*[ \t\r]*\n""")


def _text_end(data: bytes) -> int:
    """Where to cut text: after a paragraph, else a sentence, a line, a word, a character."""
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


def _row_end(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _first_row_end(data: bytes) -> int:
    return data.find(b"\n") + 1


# ---- documents


def _one_document(span: Span) -> Iterator[RawDocument]:
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
        # a blank line may lie across two blocks
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
    """The last characters before a span, by which to tell whether it begins a document."""
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
    """The rows of a `.parquet` file, with all their columns. Raises: DataError."""
    if not path.exists():
        raise DataError(f"{path}: no such file; check the spelling")
    if path.is_dir():
        raise DataError(f"{path}: a folder; name a file")
    with _parquet(path) as table:
        for rows in _batches(path, table):
            yield from rows.to_pylist()


def _batches(path: Path, table: Any, **options: Any) -> Iterator[Any]:
    """Yield the rows of a `.parquet` file, and check their total size."""
    packed, unpacked = path.stat().st_size, 0
    for rows in table.iter_batches(PARQUET_BATCH_ROWS, **options):
        unpacked += rows.nbytes
        check_unpacked(path, packed, unpacked, DataError)
        yield rows


def _parquet_documents(span: Span, field: str) -> Iterator[RawDocument]:
    """Rows of a column; `line` is the number of the row, from 1."""
    with _parquet(span.file) as table:
        columns = table.schema_arrow
        if field not in columns.names:
            near = did_you_mean(field, columns.names)
            raise DataError(f"{span.file}: no column {field!r}; {near}")
        kind = columns.field(field).type
        if str(kind) not in ("string", "large_string"):
            raise DataError(f"{span.file}: column {field!r} holds {kind}, not text")
        line = 0
        for rows in _batches(span.file, table, columns=[field]):
            for text in rows.column(field).to_pylist():
                line += 1
                if text is None:
                    raise DataError(f"{span.file}:{line}: column {field!r} holds no text")
                yield RawDocument(text, span.file, line)


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The file, open. Raises: DataError where it is damaged, or pyarrow is not there."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(
            f"{path}: reading .parquet needs pyarrow; pip install 'bertkit[cleaning]'"
        ) from None
    check_file(path, DataError, most=sys.maxsize)
    try:
        with parquet.ParquetFile(path) as table:
            groups = map(table.metadata.row_group, range(table.num_row_groups))
            size = sum(group.total_byte_size for group in groups)
            check_unpacked(path, path.stat().st_size, size, DataError)
            yield table
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: damaged or no .parquet ({error}); get it again") from None


def _check_row(raw: bytes, field: str, where: str) -> None:
    """Say what is wrong with this row, if anything is."""
    row = json_object(raw, where)
    if field not in row:
        raise DataError(f"{where}: no field {field!r}; {did_you_mean(field, row)}")
    if not isinstance(row[field], str):
        kind = type(row[field]).__name__
        raise DataError(f"{where}: field {field!r} holds a {kind}, not text")
    try:
        _row_decoder(field).decode(raw)
    except msgspec.MsgspecError as error:  # Python writes and reads NaN, which JSON has not
        raise DataError(f"{where}: not JSON ({error}); write null for NaN") from None


def json_object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); .jsonl has one object a line") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: a {type(row).__name__}, not an object; write {{...}} on a line")
    if b"\\u" in raw or b"\xed" in raw:  # Python reads half a pair, and cannot write it
        refuse_halves(where, json.dumps(row, ensure_ascii=False))
    return row


def refuse_halves(where: str, *texts: str) -> None:
    """Raises: DataError for half of a surrogate pair."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{where}: half of a surrogate pair (\\ud800 to \\udfff) is no character; write "
                "the whole pair, or \\ufffd"
            ) from None
