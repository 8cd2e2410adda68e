"""Reading of the documents to index.

In .jsonl, .csv and .tsv files, each row is a document. A file of any other type is one document.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from bertkit.config import Settings
from bertkit.data.document_readers import Span, blocks, check_surrogates, json_object, read_text
from bertkit.data.paths import counted, files_inside, paths_of, suffix
from bertkit.data.row_readers import TABLES, Rows
from bertkit.errors import ConfigError, DataError, did_you_mean
from bertkit.extensions.search.converter import MAX_DOCUMENT_CHARACTERS, Converter, too_long_message
from bertkit.extensions.search.document_formats import (
    CONVERTED,
    Extracted,
    Heading,
    install_hint,
    markdown,
)

KINDS = (*TABLES, ".txt", ".md", *CONVERTED)

IDS, TITLE, TEXT = ("id", "_id"), "title", "text"
"""Fields that are read from a row by default."""

Kind = Literal["text", "number"]
Value = str | float | None


class DocumentColumns(Settings, frozen=True):
    """Names of the columns, or JSON fields, to read from rows."""

    id: str | None = msgspec.field(default=None, name="id_column")
    """Field that contains the document id. Default: id or _id, or else the file name and line
    number are used."""
    text: tuple[str, ...] = msgspec.field(default=(), name="text_column")
    """Field that contains the text. Repeat the option to join several fields. Default: title, if it
    exists, and text."""
    keep: tuple[str, ...] = ()
    """Field to store so that searches can filter by it with --where: NAME, or NAME:number for
    numbers. Repeat the option for several fields."""

    def fields(self) -> dict[str, Kind]:
        """Return the name and type of each field in `keep`.

        Raises:
            ConfigError: If a name is empty, reserved, or listed twice.
        """
        kinds: dict[str, Kind] = {}
        for name in self.keep:
            kind: Kind = "number" if name.endswith(":number") else "text"
            name = name.removesuffix(":number").removesuffix(":text")
            if name in ("", "id", *kinds):
                raise ConfigError(
                    f"keep: field {name!r} is empty, reserved or listed twice; list each field once"
                )
            kinds[name] = kind
        return kinds


@dataclass(frozen=True)
class Document:
    """A document to index.

    Attributes:
        id: Unique id.
        text: The text.
        source: File that contains the document. For a row, FILE:LINE.
        fields: Values of the kept fields.
        headings: Headings in the text.
        pages: Offset in the text at which each page starts. Empty if the file has no pages.
    """

    id: str
    text: str
    source: str
    fields: Mapping[str, Value] = field(default_factory=dict)
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Listing:
    """The files to index, and how many files are skipped."""

    files: Sequence[tuple[Path, str]]
    """Each file, and its path relative to the directory that was passed."""
    skipped: Mapping[str, int]
    """Number of skipped files of each type. Files are skipped if their type is not supported, or if
    it requires a package that is not installed."""
    unread: Sequence[str] = ()
    """Files that are skipped because their type requires a package that is not installed."""

    def __str__(self) -> str:
        """Describe how many files of each type are indexed, and how many are skipped."""
        kinds = Counter(suffix(file) or "others" for file, _ in self.files)
        text = f"files: {len(self.files):,} ({counted(kinds)})"
        if self.skipped:
            text += f"; skipped: {sum(self.skipped.values()):,} ({counted(self.skipped)})"
        return text


OnError = Callable[[DataError], None]
"""Function that receives the error for each file or row that is skipped."""


def list_files(paths: Sequence[str | Path]) -> Listing:
    """List the files to read. For a directory, these are the files that `files_inside` returns.

    Args:
        paths: Files and directories.

    Raises:
        DataError: If a path does not exist, is listed twice, or has an unsupported type, or if a
            directory contains no supported file.
    """
    supported = f"{', '.join(KINDS[:-1])} and {KINDS[-1]}"
    files: list[tuple[Path, str]] = []
    skipped: Counter[str] = Counter()
    unread: list[str] = []
    for path in paths_of(paths):
        if not path.exists():
            raise DataError(f"{path}: file or directory not found; check the spelling")
        if path.is_dir():
            before = len(files)
            inside, others = files_inside(path, KINDS)
            skipped += others
            for file in inside:
                kind = suffix(file)
                if hint := install_hint(kind):
                    skipped[f"{kind} ({hint})"] += 1
                    unread.append(str(file))
                else:
                    files.append((file, file.relative_to(path).as_posix()))
            if len(files) == before:
                kinds = f" ({counted(skipped)})" if skipped else ""
                raise DataError(
                    f"{path}: the directory contains no supported file{kinds}; use {supported}"
                )
        elif suffix(path) in KINDS:
            if hint := install_hint(suffix(path)):
                raise DataError(
                    f"{path}: this file type requires a package that is not installed; {hint}"
                )
            files.append((path, path.name))
        else:
            raise DataError(f"{path}: unsupported file type; use {supported}, or these with .gz")
    seen: set[Path] = set()
    for file, _ in files:
        if file.resolve() in seen:
            raise DataError(f"{file}: listed twice; list each file once")
        seen.add(file.resolve())
    return Listing(files, skipped, unread)


def documents(
    paths: Sequence[str | Path] | Listing,
    columns: DocumentColumns,
    *,
    on_error: OnError | None = None,
    convert: Converter | None = None,
) -> Iterator[Document]:
    """Yield the documents in files and directories, in order.

    If a file is one document, its id is its path relative to the directory that was passed. A
    .jsonl file is read row by row, and a .csv or .tsv file is loaded into memory completely.

    Args:
        paths: Files and directories, or the listing that `list_files` returned for them.
        columns: Columns to read from rows.
        on_error: Function that receives the error for each invalid file or row and for each
            duplicate id. The file or row is then skipped. Default: raise the error.
        convert: Converter to share between calls, so that each file is converted only once.

    Raises:
        DataError: If a document is invalid and `on_error` is not given. The message contains the
            file and line.
    """
    if convert is None:
        with Converter() as convert:
            yield from documents(paths, columns, on_error=on_error, convert=convert)
        return
    fields = columns.fields()
    listing = paths if isinstance(paths, Listing) else list_files(paths)
    seen: set[str] = set()
    for file, name in listing.files:
        raws = _read_raw(file)
        while True:
            try:
                raw = next(raws, None)
                if raw is None:
                    break
                document = (
                    _read_file(file, name, fields, convert)
                    if isinstance(raw, Path)
                    else _read_row(file, name, *raw, columns, fields)
                )
                _check(document, seen)
            except DataError as error:
                if on_error is None:
                    raise
                on_error(error)
                continue
            seen.add(document.id)
            yield document


Raw = Path | tuple[int, bytes | Mapping[str, Any]]
"""A file that is one document, or the line number and content of a row."""


def _read_raw(file: Path) -> Iterator[Raw]:
    """Yield the documents in a file before they are parsed.

    Raises:
        DataError: If the file cannot be read.
    """
    if file.stat().st_size == 0:
        raise DataError(f"{file}: the file is empty; remove the file")
    if suffix(file) == ".jsonl":
        for block in blocks(Span(file, 0, file.stat().st_size)):
            lines = enumerate(block.data.split(b"\n"), block.line)
            yield from ((line, raw) for line, raw in lines if raw.strip())
    elif suffix(file) in TABLES:
        table = Rows.read(file)
        table.check_lengths()
        yield from ((line, table.record(index)) for index, line in enumerate(table.lines or ()))
    else:
        yield file


def _read_file(file: Path, name: str, fields: Mapping[str, Kind], convert: Converter) -> Document:
    source = str(file)
    # A file name can contain lone surrogates, but an id cannot.
    check_surrogates(source, source)
    if suffix(file) in CONVERTED:
        extracted = convert(file)
    else:
        text = read_text(file)
        extracted = markdown(text) if suffix(file) == ".md" else Extracted(text)
    empty = dict.fromkeys(fields)
    return Document(name, extracted.text, source, empty, extracted.headings, extracted.pages)


def _read_row(
    file: Path,
    name: str,
    line: int,
    raw: bytes | Mapping[str, Any],
    columns: DocumentColumns,
    fields: Mapping[str, Kind],
) -> Document:
    source = f"{file}:{line}"
    row = json_object(raw, source) if isinstance(raw, bytes) else raw
    return _document(row, columns, fields, source, name, line)


def _document(
    row: Mapping[str, Any],
    columns: DocumentColumns,
    fields: Mapping[str, Kind],
    source: str,
    name: str,
    line: int,
) -> Document:
    def get(key: str, option: str) -> Any:
        if key not in row:
            near = did_you_mean(key, row)
            raise DataError(f"{source}: field {key!r} not found; set {option} to a field; {near}")
        return row[key]

    key = columns.id or next((key for key in IDS if key in row), None)
    texts = columns.text or ((TITLE, TEXT) if TITLE in row else (TEXT,))
    return Document(
        f"{name}:{line}" if key is None else _text(get(key, "--id-column")).strip(),
        "\n".join(filter(None, (_text(get(part, "--text-column")).strip() for part in texts))),
        source,
        {
            field: _value(get(field, "--keep"), kind, field, source)
            for field, kind in fields.items()
        },
    )


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _value(value: Any, kind: Kind, field: str, source: str) -> Value:
    if value is None or value == "":
        return None
    if kind == "text":
        return _text(value)
    try:
        if isinstance(value, bool) or not math.isfinite(number := float(value)):
            raise ValueError
        return number
    except (TypeError, ValueError, OverflowError):
        raise DataError(
            f"{source}: field {field!r} must be a number, got {str(value)[:40]!r}; correct the "
            f"value, or keep the field as text (--keep {field})"
        ) from None


def _check(document: Document, seen: Set[str]) -> None:
    """Raise DataError if a document cannot be indexed."""
    source = document.source
    if not document.id:
        raise DataError(f"{source}: the id is empty; set an id")
    if document.id in seen:
        raise DataError(
            f"{source}: the id {document.id!r} already exists; use unique ids, or select the "
            "field that contains the ids (--id-column)"
        )
    if not document.text.strip():
        raise DataError(f"{source}: the document contains no text; remove the document")
    if len(document.text) > MAX_DOCUMENT_CHARACTERS:
        raise DataError(too_long_message(source, len(document.text)))
    check_surrogates(source, document.id, document.text, *map(str, document.fields.values()))
