"""Documents to search in: rows of .jsonl, .csv and .tsv files, collections in the form of SMART;
.txt, .md and .html files whole."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bertkit.config import Settings
from bertkit.data.paths import files, suffix
from bertkit.data.readers import Span, blocks, json_object, read_text
from bertkit.data.smart import is_smart, read_smart
from bertkit.data.tables import TABLES, rows
from bertkit.errors import ConfigError, DataError, did_you_mean

PAGES = (".html", ".htm")
KINDS = (*TABLES, ".txt", ".md", *PAGES)

LONGEST = 16 << 20
"""Characters of one document; a larger one answers nothing, and its parts would."""

IDS, TITLE, TEXT = ("id", "_id"), "title", "text"
"""Fields that are looked for where none is named."""

Kind = Literal["text", "number"]
Value = str | float | None


class Columns(Settings, frozen=True):
    """Which fields of a row hold what."""

    id: str | None = None
    """Field of a document's id; by default id or _id, else the file's name and the line."""
    text: tuple[str, ...] = ()
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
    """One document: `where` is its file, and line if it is a row."""

    id: str
    text: str
    where: str
    fields: Mapping[str, Value] = field(default_factory=dict)


def documents(paths: Sequence[Path], columns: Columns) -> Iterator[Document]:
    """Every document of these files and folders, in order.

    The id of a file is its path below the folder that was named. A collection in the form of SMART
    is known by how it begins; its documents without a text are left out. A .jsonl file is read row
    by row, a .csv or .tsv file at once.
    Raises: DataError naming file and line.
    """
    fields = columns.fields()
    for path in map(Path, paths):
        if is_smart(path):
            yield from _smart(path, columns, fields)
            continue
        for file in files([path], KINDS):
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            if suffix(file) in TABLES:
                for line, row in _rows(file):
                    yield _checked(_document(row, columns, fields, f"{file}:{line}", name, line))
            else:
                text = read_text(file)
                yield _checked(
                    Document(
                        name,
                        html_text(text) if suffix(file) in PAGES else text,
                        str(file),
                        dict.fromkeys(fields),
                    )
                )


def _smart(path: Path, columns: Columns, fields: Mapping[str, Kind]) -> Iterator[Document]:
    """Documents with a text; published collections have some without."""
    for line, row in read_smart(path):
        document = _document(row, columns, fields, f"{path}:{line}", path.name, line)
        if document.text:
            yield _checked(document)


def _rows(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if suffix(file) != ".jsonl":
        table = rows(file, header=True)
        yield from zip(table.lines, table.rows, strict=True)
        return
    for block in blocks(Span(file, 0, file.stat().st_size)):
        for line, raw in enumerate(block.data.split(b"\n"), block.line):
            if raw.strip():
                yield line, json_object(raw, f"{file}:{line}")


def _document(
    row: Mapping[str, Any],
    columns: Columns,
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


def _checked(document: Document) -> Document:
    where = document.where
    if not document.id:
        raise DataError(f"{where}: the id is empty; give one")
    if not document.text.strip():
        raise DataError(f"{where}: no text in this document; leave it out")
    if len(document.text) > LONGEST:
        raise DataError(
            f"{where}: a document of {len(document.text):,} characters, and {LONGEST:,} is the "
            "most; cut it where it has parts, such as its chapters"
        )
    for text in (document.id, document.text, *document.fields.values()):
        try:
            str(text).encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{where}: half of a surrogate pair (\\ud800 to \\udfff) is no character; write "
                "the whole pair, or \\ufffd"
            ) from None
    return document


UNSEEN = ("script", "style", "noscript", "template")
BLOCKS = ("p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "title", "pre")


def html_text(page: str) -> str:
    """The visible text of a page, a line for each block."""
    try:
        from bs4 import BeautifulSoup
    except ModuleNotFoundError:
        raise DataError(
            "reading .html needs Beautiful Soup; pip install 'bertkit[search]'"
        ) from None

    soup = BeautifulSoup(page, "html.parser")
    for tag in soup(UNSEEN):
        tag.decompose()
    for tag in soup(BLOCKS):
        tag.insert(0, "\n")  # inside: beside it, its place would be looked for among all others
        tag.append("\n")
    lines = (" ".join(line.split()) for line in soup.get_text().splitlines())
    return "\n".join(filter(None, lines))
