"""Documents to search in: rows of .jsonl, .csv and .tsv files; other files whole."""

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
from bertkit.data.document_readers import Span, blocks, json_object, read_text, refuse_halves
from bertkit.data.paths import counted, files_inside, paths_of, suffix
from bertkit.data.row_readers import TABLES, Rows
from bertkit.errors import ConfigError, DataError, did_you_mean
from bertkit.extensions.search.converter import MAX_DOCUMENT_CHARACTERS, Converter, too_long
from bertkit.extensions.search.document_formats import (
    CONVERTED,
    Extracted,
    Heading,
    lacking,
    markdown,
)

KINDS = (*TABLES, ".txt", ".md", *CONVERTED)

IDS, TITLE, TEXT = ("id", "_id"), "title", "text"
"""Fields that are looked for where none is named."""

Kind = Literal["text", "number"]
Value = str | float | None


class DocumentColumns(Settings, frozen=True):
    """Which columns, or fields, of a row hold what."""

    id: str | None = msgspec.field(default=None, name="id_column")
    """Field of a document's id; by default id or _id, else the file's name and the line."""
    text: tuple[str, ...] = msgspec.field(default=(), name="text_column")
    """Field of the text, once for each; by default title, where there is one, and text."""
    keep: tuple[str, ...] = ()
    """Field to filter by, as NAME or NAME:number; once for each."""

    def fields(self) -> dict[str, Kind]:
        """The kept fields and their kinds. Raises: ConfigError for one that is named twice."""
        kinds: dict[str, Kind] = {}
        for name in self.keep:
            kind: Kind = "number" if name.endswith(":number") else "text"
            name = name.removesuffix(":number").removesuffix(":text")
            if name in ("", "id", *kinds):
                raise ConfigError(
                    f"keep: {name!r} is empty, there already, or named twice; name each field once"
                )
            kinds[name] = kind
        return kinds


@dataclass(frozen=True)
class Document:
    """One document: `where` is its file, and line if it is a row.

    `pages` holds where each page of the text begins, if it has pages.
    """

    id: str
    text: str
    where: str
    fields: Mapping[str, Value] = field(default_factory=dict)
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Listing:
    """The files that paths name, each with its name below the folder, and how many were passed over
    and why: a kind that is not read, or one that nothing installed reads.
    """

    files: Sequence[tuple[Path, str]]
    skipped: Mapping[str, int]
    unread: Sequence[str] = ()
    """Files of those that nothing installed reads."""

    def __str__(self) -> str:
        """Both in a sentence."""
        kinds = Counter(suffix(file) or "others" for file, _ in self.files)
        said = f"files: {len(self.files):,} ({counted(kinds)})"
        if self.skipped:
            said += f"; skipped: {sum(self.skipped.values()):,} ({counted(self.skipped)})"
        return said


Bad = Callable[[DataError], None]
"""Is told of a file or a row that cannot be used."""


def listed(paths: Sequence[str | Path]) -> Listing:
    """Return the files to read; a directory contributes the files of `files_inside`.

    Raises:
        DataError: If a path is missing, listed twice, or of another type, or if a directory
            has no file that can be read.
    """
    known = f"{', '.join(KINDS[:-1])} and {KINDS[-1]}"
    chosen: list[tuple[Path, str]] = []
    skipped: Counter[str] = Counter()
    unread: list[str] = []
    for path in paths_of(paths):
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; check the spelling")
        if path.is_dir():
            before = len(chosen)
            inside, others = files_inside(path, KINDS)
            skipped += others
            for file in inside:
                kind = suffix(file)
                if needs := lacking(kind):
                    skipped[f"{kind}, which needs {needs}"] += 1
                    unread.append(str(file))
                else:
                    chosen.append((file, file.relative_to(path).as_posix()))
            if len(chosen) == before:
                kinds = f"; it holds {counted(skipped)}" if skipped else ""
                raise DataError(
                    f"{path}: no file in this folder that is read{kinds}; text is read from {known}"
                )
        elif suffix(path) in KINDS:
            if needs := lacking(suffix(path)):
                raise DataError(f"{path}: nothing is installed that reads it; {needs}")
            chosen.append((path, path.name))
        else:
            raise DataError(f"{path}: unknown kind of file; text is read from {known}, also .gz")
    seen: set[Path] = set()
    for file, _ in chosen:
        if file.resolve() in seen:
            raise DataError(f"{file}: named twice; name each file once")
        seen.add(file.resolve())
    return Listing(chosen, skipped, unread)


def documents(
    paths: Sequence[str | Path] | Listing,
    columns: DocumentColumns,
    *,
    bad: Bad | None = None,
    convert: Converter | None = None,
) -> Iterator[Document]:
    """Every document of these files and folders, in order.

    The id of a file is its path relative to the directory. A .jsonl file is read row by row, a .csv
    or .tsv file at once. `convert` may be given so that files are read once however
    often this is called. A file, row or second document of an id that cannot be used is left out
    where `bad` is there to be told.
    Raises: DataError naming file and line.
    """
    if convert is None:
        with Converter() as convert:
            yield from documents(paths, columns, bad=bad, convert=convert)
        return
    fields = columns.fields()
    listing = paths if isinstance(paths, Listing) else listed(paths)
    seen: set[str] = set()
    for file, name in listing.files:
        raws = _raws(file)
        while True:
            try:
                raw = next(raws, None)
                if raw is None:
                    break
                document = (
                    _whole(file, name, fields, convert)
                    if isinstance(raw, Path)
                    else _row(file, name, *raw, columns, fields)
                )
                _check(document, seen)
            except DataError as error:
                if bad is None:
                    raise
                bad(error)
                continue
            seen.add(document.id)
            yield document


Raw = Path | tuple[int, bytes | Mapping[str, Any]]
"""A file that is a document, or a row of one with its line."""


def _raws(file: Path) -> Iterator[Raw]:
    """What each document of a file is made of. Raises: DataError for a file that cannot be read."""
    if file.stat().st_size == 0:
        raise DataError(f"{file}: the file is empty; leave it out")
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


def _whole(file: Path, name: str, fields: Mapping[str, Kind], convert: Converter) -> Document:
    where = str(file)
    refuse_halves(where, where)  # a name that no text can be
    if suffix(file) in CONVERTED:
        extracted = convert(file)
    else:
        text = read_text(file)
        extracted = markdown(text) if suffix(file) == ".md" else Extracted(text)
    none = dict.fromkeys(fields)
    return Document(name, extracted.text, where, none, extracted.headings, extracted.pages)


def _row(
    file: Path,
    name: str,
    line: int,
    raw: bytes | Mapping[str, Any],
    columns: DocumentColumns,
    fields: Mapping[str, Kind],
) -> Document:
    where = f"{file}:{line}"
    row = json_object(raw, where) if isinstance(raw, bytes) else raw
    return _document(row, columns, fields, where, name, line)


def _document(
    row: Mapping[str, Any],
    columns: DocumentColumns,
    fields: Mapping[str, Kind],
    where: str,
    name: str,
    line: int,
) -> Document:
    def held(key: str) -> Any:
        if key not in row:
            raise DataError(f"{where}: no field {key!r}; {did_you_mean(key, row)}")
        return row[key]

    usual = next((key for key in IDS if key in row), None)
    key = columns.id or usual
    texts = columns.text or ((TITLE, TEXT) if TITLE in row else (TEXT,))
    return Document(
        f"{name}:{line}" if key is None else _text(held(key)).strip(),
        "\n".join(filter(None, (_text(held(part)).strip() for part in texts))),
        where,
        {field: _value(held(field), kind, field, where) for field, kind in fields.items()},
    )


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _value(value: Any, kind: Kind, field: str, where: str) -> Value:
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
            f"{where}: field {field!r} holds {str(value)[:40]!r}, which is no number; mend it, or "
            f"keep it as text (--keep {field})"
        ) from None


def _check(document: Document, seen: Set[str]) -> None:
    """Raises: DataError for a document that cannot be searched."""
    where = document.where
    if not document.id:
        raise DataError(f"{where}: the id is empty; give one")
    if document.id in seen:
        raise DataError(
            f"{where}: a second document with the id {document.id!r}; give each its own, or name "
            "the field that holds it (--id-column)"
        )
    if not document.text.strip():
        raise DataError(f"{where}: no text in this document; leave it out")
    if len(document.text) > MAX_DOCUMENT_CHARACTERS:
        raise DataError(too_long(where, len(document.text)))
    refuse_halves(where, document.id, document.text, *map(str, document.fields.values()))
