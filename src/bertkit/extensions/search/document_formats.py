"""Documents as text with its headings: Markdown, HTML, PDF, Word, reStructuredText, notebooks.

Nothing is fetched and no other file is opened, whatever a file contains; `converter` reads
untrusted files with limits of memory and time.
"""

from __future__ import annotations

import io
import json
import logging
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from bertkit.data.document_readers import open_bytes, read_text
from bertkit.data.paths import suffix
from bertkit.errors import DataError
from bertkit.storage import EXPANSION, FLOOR

UNPACKED, UNPACKED_XML = 512 << 20, 64 << 20
"""Largest unpacked size in bytes of a .docx file, and of its text with all markup."""

PARAGRAPHS_OF_DOCX = 200_000
"""Largest number of paragraphs and table rows of a .docx file."""

MAX_OUTLINE_ENTRIES = 10_000
"""Entries that are read of a PDF's outline."""

CELL_SEPARATOR = " | "
"""What stands between the cells of a row."""


class Heading(msgspec.Struct, frozen=True):
    """A heading: characters [start, end) of the text; `level` is 1 for the highest, or 0 for the
    title of all.
    """

    start: int
    end: int
    level: int
    title: str


class Extracted(msgspec.Struct, frozen=True):
    """The text of a file; `pages` holds where each page begins, of files that have pages.

    Paragraphs have a blank line between them.
    """

    text: str
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()


class _Writer:
    """Paragraphs and headings, put together."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.headings: list[Heading] = []
        self.length = 0

    def add(self, text: str, level: int | None = None) -> None:
        text = text.strip()
        if not text:
            return
        if level is not None:
            title = " ".join(text.split())
            self.headings.append(Heading(self.length, self.length + len(text), level, title))
        self.parts.append(text)
        self.length += len(text) + 2

    def extracted(self) -> Extracted:
        return Extracted("\n\n".join(self.parts), tuple(self.headings))


# ---- Markdown

_FRONT = re.compile(r"---[ \t]*\r?\n(?:.*\n)*?---[ \t]*(?:\r?\n|\Z)")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")


def markdown(text: str) -> Extracted:
    """Markdown as it stands, with its headings: # and underlined ones, none of them in code."""
    return Extracted(text, tuple(_markdown_headings(text)))


def _markdown_headings(text: str) -> Iterator[Heading]:
    front = _FRONT.match(text)  # settings of a site
    start, before, fence, blank = front.end() if front else 0, "", "", True
    for line in text[start:].splitlines(keepends=True):
        bare = line.rstrip("\r\n")
        end = start + len(bare)
        opened = _FENCE.match(bare)
        if fence:
            if opened and opened[1].startswith(fence) and not bare[opened.end() :].strip():
                fence = ""
            bare = ""
        elif opened:
            fence, bare = opened[1], ""
        elif (atx := _ATX.fullmatch(bare)) and atx[2]:
            yield Heading(start, end, len(atx[1]), " ".join(atx[2].split()))
            bare = ""
        elif (under := _UNDERLINE.fullmatch(bare)) and before.strip():
            level = 1 if under[1][0] == "=" else 2
            yield Heading(start - len(before), end, level, " ".join(before.split()))
            bare = ""
        # a title above a line is one line, and neither a list, a table nor a quotation
        alone = bare and blank and not bare.lstrip().startswith(tuple("-*+>|0123456789"))
        before = line if alone and not bare.startswith("    ") else ""
        blank = not bare.strip()  # what is code, a heading or a rule ends a paragraph, too
        start += len(line)


# ---- HTML

UNSEEN = ("script", "style", "noscript", "template", "nav")
ROLES = ("navigation", "menu", "menubar", "banner", "contentinfo", "search")
"""ARIA roles of elements that are no content."""
MENUS = {"nav", "navbar", "navigation", "menu", "menubar", "breadcrumb", "breadcrumbs"}
"""Classes and ids of elements that are no content if they consist of links."""
LEVELS = {"title": 0, "h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
PARAGRAPHS = (
    *LEVELS,
    *("p", "div", "table", "ul", "ol", "dl", "pre", "blockquote", "section", "article", "header"),
    *("footer", "main", "nav", "aside", "figure", "form", "hr", "caption"),
)
LINES = ("li", "tr", "br", "dt", "dd", "option")
_PARAGRAPH, _LINE, _CELL, _HEADING = "\ue000\ue001\ue002\ue003"
"""Marks that are put into a page's text; they are private, and a page's own are taken out."""
_MARKS = re.compile(f"[{_PARAGRAPH}{_LINE}{_CELL}{_HEADING}]")


def html(page: str) -> Extracted:
    """The visible text of a page: a row of a table is a line, with its cells apart."""
    try:
        from bs4 import BeautifulSoup
        from bs4.element import NavigableString
    except ModuleNotFoundError:
        raise DataError(
            "reading .html needs Beautiful Soup; pip install 'bertkit[search]'"
        ) from None

    soup = BeautifulSoup(_MARKS.sub(" ", page), "html.parser")
    for tag in soup(UNSEEN):
        tag.decompose()
    for tag in [tag for tag in soup(True) if _is_navigation(tag)]:
        if not tag.decomposed:
            tag.decompose()
    for tag in soup("pre"):
        for string in tag.find_all(string=True):
            if type(string) is NavigableString:
                string.replace_with(string.replace("\n", _LINE))
    for tag in soup([*PARAGRAPHS, *LINES, "td", "th"]):
        mark = _LINE if tag.name in LINES else _PARAGRAPH if tag.name in PARAGRAPHS else _CELL
        level = LEVELS.get(tag.name)
        # inside: beside it, its place would be looked for among all others
        tag.insert(0, mark + ("" if level is None else f"{_HEADING}{level}"))
        if mark != _CELL:  # one ends where the next begins, and many have no end
            tag.append(mark)
    writer = _Writer()
    for paragraph in soup.get_text().split(_PARAGRAPH):
        head, mark, rest = paragraph.partition(_HEADING)
        lines = (rest[1:] if mark else head).split(_LINE)
        text = "\n".join(filter(None, map(_cells, lines)))
        writer.add(text, int(rest[0]) if mark else None)
    return writer.extracted()


def _is_navigation(tag: Any) -> bool:
    """Return whether an element is a menu, or the header or footer of the page."""
    if tag.get("role") in ROLES:
        return True
    if tag.name in ("header", "footer"):
        of_page = tag.find_parent(["article", "main", "section", "blockquote"]) is None
        return of_page and (tag.name == "footer" or tag.find("h1") is None)
    if MENUS.isdisjoint([*tag.get_attribute_list("class"), tag.get("id")]):
        return False
    links = sum(len(link.get_text("", strip=True)) for link in tag("a"))
    return links > 0.8 * len(tag.get_text("", strip=True))


def _cells(line: str) -> str:
    cells = [" ".join(cell.split()) for cell in line.split(_CELL)]
    return CELL_SEPARATOR.join(cells if cells[0] else cells[1:])


# ---- PDF


def pdf(stream: BinaryIO) -> Extracted:
    """The text of a PDF, a page as a paragraph at least, with the headings of its outline."""
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it mends it need not tell
    reader = PdfReader(stream, strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise DataError("encrypted; save it without its password, or leave it out")
    parts: list[str] = []
    pages: list[int] = []
    length = 0
    for page in reader.pages:
        text = _HYPHEN.sub("", page.extract_text()).strip()
        pages.append(length)
        if text:
            parts.append(text)
            length += len(text) + 2
    if not parts:
        raise DataError(
            f"no text in it (pages: {len(pages)}), perhaps as they are pictures of text; recognize "
            "the text first (OCR), or leave it out"
        )
    text = "\n\n".join(parts)
    return Extracted(text, tuple(_outlined(reader, text, pages)), tuple(pages))


_HYPHEN = re.compile(r"(?<=[^\W\d_A-Z])-\n(?=[^\W\d_A-Z])")
"""A word that was cut at the end of a line."""


def _outlined(reader: Any, text: str, pages: list[int]) -> list[Heading]:
    """The outline's headings, where their pages have their titles. Many outlines are broken."""
    headings: list[Heading] = []
    try:
        left = [(1, iter(reader.outline))]
        for _ in range(MAX_OUTLINE_ENTRIES):
            if not left:
                break
            level, entries = left[-1]
            entry = next(entries, None)
            if entry is None:
                left.pop()
            elif isinstance(entry, list):
                left.append((level + 1, iter(entry)))
            elif (number := reader.get_destination_page_number(entry)) is not None:
                words = [re.escape(word) for word in str(entry.title).split()]
                ends = pages[number + 1] if number + 1 < len(pages) else len(text)
                place = re.compile(r"\s+".join(words), re.I).search(text, pages[number], ends)
                if words and place and (not headings or place.start() >= headings[-1].end):
                    title = " ".join(str(entry.title).split())
                    headings.append(Heading(*place.span(), level, title))
    except Exception:  # of any kind, as pypdf raises what it meets
        return []
    return headings


# ---- Word

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"


def docx(stream: BinaryIO) -> Extracted:
    """The text of a Word document: a row of a table is a line, with its cells apart."""
    from docx import Document
    from docx.table import Table

    with zipfile.ZipFile(stream) as packed:
        parts = packed.infolist()
    size = max(FLOOR, EXPANSION * stream.seek(0, io.SEEK_END))
    _check_size(sum(part.file_size for part in parts), min(size, UNPACKED), "bytes")
    markup = [part.file_size for part in parts if part.filename.endswith((".xml", ".rels"))]
    _check_size(sum(markup), UNPACKED_XML, "bytes of text with its markup")
    stream.seek(0)
    writer = _Writer()
    document = Document(stream)
    count = sum(1 for _ in document.element.body.iter(f"{_W}p", f"{_W}tr"))
    _check_size(count, PARAGRAPHS_OF_DOCX, "paragraphs and rows")
    # Paragraph.style looks through all styles, which takes milliseconds.
    names = {style.style_id: style.name or "" for style in document.styles}
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            rows = ({cell._tc: cell.text for cell in row.cells}.values() for row in block.rows)
            cells = (CELL_SEPARATOR.join(" ".join(cell.split()) for cell in row) for row in rows)
            writer.add("\n".join(cells))
        else:
            name = names.get(block._p.style or "", "")
            level = re.fullmatch(r"Heading (\d)", name, re.I)
            writer.add(block.text, int(level[1]) if level else 0 if name == "Title" else None)
    return writer.extracted()


def _check_size(size: int, most: int, unit: str) -> None:
    if size > most:
        raise DataError(f"unpacks to more than {most:,} {unit}; split the document, or remove it")


# ---- reStructuredText

RST = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "_disable_config": True,
    "report_level": 5,
    "halt_level": 5,
    "warning_stream": False,
    "syntax_highlight": "none",
    "smart_quotes": False,
}
"""No file is included, none is fetched, none is read for settings."""


def rst(text: str) -> Extracted:
    """The text of reStructuredText; of what only Sphinx knows, as it stands there."""
    from docutils import nodes
    from docutils.core import publish_doctree

    left_out = (nodes.comment, nodes.substitution_definition, nodes.pending, nodes.raw, nodes.image)
    writer = _Writer()

    def walk(node: Any, level: int) -> None:
        for child in node.children:
            if isinstance(child, nodes.section):
                walk(child, level + 1)
            elif isinstance(child, nodes.title) and isinstance(
                node, nodes.document | nodes.section
            ):
                writer.add(child.astext(), level)
            elif isinstance(child, nodes.row):
                cells = (" ".join(entry.astext().split()) for entry in child.children)
                writer.add(CELL_SEPARATOR.join(cells))
            elif isinstance(child, nodes.system_message):
                for block in child.findall(nodes.literal_block):  # an unknown directive
                    writer.add(block.astext())
            elif isinstance(child, nodes.TextElement):
                writer.add(child.astext())
            elif not isinstance(child, left_out):
                walk(child, level)

    tree = publish_doctree(text, settings_overrides=RST)
    walk(tree, 0)
    return writer.extracted()


# ---- Jupyter


def notebook(text: str) -> Extracted:
    """The cells of a notebook, text and code, without what the code has put out."""
    try:
        data = json.loads(text)
        sheets = data.get("worksheets") or [data]  # of version 3
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        sources = [(cell["cell_type"], cell.get("source", cell.get("input", ""))) for cell in cells]
        parts = [(kind, part if isinstance(part, str) else "".join(part)) for kind, part in sources]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"no notebook ({type(error).__name__}: {error}); get it again") from None
    writer, headings = _Writer(), []
    for kind, part in parts:
        start = writer.length
        writer.add(part)
        if kind == "markdown":
            shift = start - (len(part) - len(part.lstrip()))
            headings += [
                Heading(max(h.start + shift, start), h.end + shift, h.level, h.title)
                for h in _markdown_headings(part)
            ]
    return Extracted(writer.extracted().text, tuple(headings))


# ---- all

CONVERTED: Mapping[str, Callable[[Any], Extracted]] = {
    ".html": html,
    ".htm": html,
    ".pdf": pdf,
    ".docx": docx,
    ".rst": rst,
    ".ipynb": notebook,
}
"""Kinds of files that hold more than their text."""

BINARY = (".pdf", ".docx")

NEEDS = {".pdf": "pypdf", ".docx": "docx", ".rst": "docutils"}
"""The module that reads a kind; all are in the extra `search`."""


def lacking(kind: str) -> str | None:
    """What to install before files of a kind are read, if it is not there."""
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        return "pip install 'bertkit[search]'"
    return None


def convert(file: Path) -> Extracted:
    """The text of a file of one of these kinds.

    Raises: DataError naming the file.
    """
    kind = suffix(file)
    try:
        if kind not in BINARY:
            return _clean(CONVERTED[kind](read_text(file)))
        with open_bytes(file) as stream:
            return _clean(CONVERTED[kind](io.BytesIO(stream.read())))
    except DataError as error:
        said = str(error)
        raise DataError(said if said.startswith(str(file)) else f"{file}: {said}") from None
    except MemoryError:
        raise
    except Exception as error:  # of any kind: what a reader meets in a damaged file it raises
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(f"{file}: damaged, or no {kind} ({said}); get it again") from None


_UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def _clean(extracted: Extracted) -> Extracted:
    """The same without control characters and halves of pairs; nothing moves."""
    if not _UNPRINTED.search(extracted.text):
        return extracted
    return msgspec.structs.replace(extracted, text=_UNPRINTED.sub("\ufffd", extracted.text))
