"""Conversion of Markdown, HTML, PDF, Word, reStructuredText and notebooks to text with headings.

Converters never download anything or open other files, whatever a file contains. The module
`converter` runs them with memory and time limits.
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
"""Maximum unpacked sizes in bytes: of a whole .docx file, and of the XML files in it."""

PARAGRAPHS_OF_DOCX = 200_000
"""Maximum number of paragraphs and table rows in a .docx file."""

MAX_OUTLINE_ENTRIES = 10_000
"""Maximum number of outline entries to read from a PDF."""

CELL_SEPARATOR = " | "
"""Text that separates the cells of a table row."""


class Heading(msgspec.Struct, frozen=True):
    """A heading, which is at characters [start, end) of the text.

    `level` is 1 for the highest heading, or 0 for the title of the document.
    """

    start: int
    end: int
    level: int
    title: str


class Extracted(msgspec.Struct, frozen=True):
    """The text that was extracted from a file, with a blank line between paragraphs.

    If the file has pages, `pages` contains the offset at which each page starts.
    """

    text: str
    headings: tuple[Heading, ...] = ()
    pages: tuple[int, ...] = ()


class _Writer:
    """A builder that joins paragraphs and headings to a text."""

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
    """Find the headings of a Markdown text, both # and underlined ones; the text is unchanged."""
    return Extracted(text, tuple(_markdown_headings(text)))


def _markdown_headings(text: str) -> Iterator[Heading]:
    # Skip front matter, such as the settings of a page in a static site.
    front = _FRONT.match(text)
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
        # An underlined title is a single line after a blank line, and not part of a list, table,
        # quotation or code block.
        single = bare and blank and not bare.lstrip().startswith(tuple("-*+>|0123456789"))
        before = line if single and not bare.startswith("    ") else ""
        # Code, headings and horizontal rules also end a paragraph.
        blank = not bare.strip()
        start += len(line)


# ---- HTML

UNSEEN = "script, style, noscript, template, nav, svg title"
ROLES = ("navigation", "menu", "menubar", "banner", "contentinfo", "search")
"""ARIA roles of elements that are skipped because they contain no content of the page."""
MENUS = {"nav", "navbar", "navigation", "menu", "menubar", "breadcrumb", "breadcrumbs"}
"""Classes and ids of elements that are skipped if they contain only links."""
LEVELS = {"title": 0, "h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
PARAGRAPHS = (
    *LEVELS,
    *("p", "div", "table", "ul", "ol", "dl", "pre", "blockquote", "section", "article", "header"),
    *("footer", "main", "nav", "aside", "figure", "form", "hr", "caption"),
)
LINES = ("li", "tr", "br", "dt", "dd", "option")
_PARAGRAPH, _LINE, _CELL, _HEADING = "\ue000\ue001\ue002\ue003"
"""Private-use characters that mark the structure of a page. If the text of the page itself contains
them, they are removed from it."""
_MARKS = re.compile(f"[{_PARAGRAPH}{_LINE}{_CELL}{_HEADING}]")


def html(page: str) -> Extracted:
    """Extract the visible text of a web page. Each table row becomes one line.

    Args:
        page: HTML of the page.

    Raises:
        DataError: If Beautiful Soup is not installed.
    """
    try:
        from bs4 import BeautifulSoup
        from bs4.element import NavigableString
    except ModuleNotFoundError:
        raise DataError(
            "reading .html requires Beautiful Soup; run pip install 'bertkit[search]'"
        ) from None

    soup = BeautifulSoup(_MARKS.sub(" ", page), "html.parser")
    for tag in soup.select(UNSEEN):
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
        # Insert the mark inside the element, because inserting it before the element would search
        # all siblings.
        tag.insert(0, mark + ("" if level is None else f"{_HEADING}{level}"))
        # Cells need no mark at their end: a cell ends where the next one begins, and many have no
        # end tag.
        if mark != _CELL:
            tag.append(mark)
    writer = _Writer()
    for paragraph in soup.get_text().split(_PARAGRAPH):
        head, mark, rest = paragraph.partition(_HEADING)
        lines = (rest[1:] if mark else head).split(_LINE)
        text = "\n".join(filter(None, map(_cells, lines)))
        writer.add(text, int(rest[0]) if mark else None)
    return writer.extracted()


def _is_navigation(tag: Any) -> bool:
    """Return whether an element is a menu, a page header or a page footer."""
    if tag.get("role") in ROLES:
        return True
    if tag.name in ("header", "footer"):
        is_top_level = tag.find_parent(["article", "main", "section", "blockquote"]) is None
        return is_top_level and (tag.name == "footer" or tag.find("h1") is None)
    if MENUS.isdisjoint([*tag.get_attribute_list("class"), tag.get("id")]):
        return False
    links = sum(len(link.get_text("", strip=True)) for link in tag("a"))
    return links > 0.8 * len(tag.get_text("", strip=True))


def _cells(line: str) -> str:
    cells = [" ".join(cell.split()) for cell in line.split(_CELL)]
    return CELL_SEPARATOR.join(cells if cells[0] else cells[1:])


# ---- PDF


def pdf(stream: BinaryIO) -> Extracted:
    """Extract the text of a PDF, and its headings from the outline.

    Each page starts a new paragraph.

    Args:
        stream: The file.

    Raises:
        DataError: If the file is encrypted or contains no text.
    """
    from pypdf import PdfReader

    # Silence pypdf, because it logs each problem that it repairs.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(stream, strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise DataError("the file is encrypted; save it without a password, or remove it")
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
            f"the file contains no text (pages: {len(pages)}), perhaps only scanned images; run "
            "OCR first, or remove the file"
        )
    text = "\n\n".join(parts)
    return Extracted(text, tuple(_outline_headings(reader, text, pages)), tuple(pages))


_HYPHEN = re.compile(r"(?<=[^\W\d_A-Z])-\n(?=[^\W\d_A-Z])")
"""Hyphen and line break inside a word that is split at the end of a line."""


def _outline_headings(reader: Any, text: str, pages: list[int]) -> list[Heading]:
    """Return the outline entries whose titles occur on their pages. Many outlines are wrong."""
    headings: list[Heading] = []
    try:
        stack = [(1, iter(reader.outline))]
        for _ in range(MAX_OUTLINE_ENTRIES):
            if not stack:
                break
            level, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
            elif isinstance(entry, list):
                stack.append((level + 1, iter(entry)))
            elif (number := reader.get_destination_page_number(entry)) is not None:
                words = [re.escape(word) for word in str(entry.title).split()]
                end = pages[number + 1] if number + 1 < len(pages) else len(text)
                match = re.compile(r"\s+".join(words), re.I).search(text, pages[number], end)
                if words and match and (not headings or match.start() >= headings[-1].end):
                    title = " ".join(str(entry.title).split())
                    headings.append(Heading(*match.span(), level, title))
    except Exception:
        # pypdf raises exceptions of many types for damaged outlines.
        return []
    return headings


# ---- Word

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
"""Copy of a text box for old programs."""
_WRAPPERS = [
    f"{_W}{name}"
    for name in ("customXml", "fldSimple", "ins", "moveTo", "sdt", "sdtContent", "smartTag")
]
"""Elements around text, such as content controls and tracked insertions, that python-docx skips."""


def docx(stream: BinaryIO) -> Extracted:
    """Extract the text of a Word document. Each table row becomes one line.

    Args:
        stream: The file.

    Raises:
        DataError: If the document is too large.
    """
    from docx import Document
    from docx.table import Table

    with zipfile.ZipFile(stream) as packed:
        parts = packed.infolist()
    size = max(FLOOR, EXPANSION * stream.seek(0, io.SEEK_END))
    _check_size(sum(part.file_size for part in parts), min(size, UNPACKED), "bytes")
    markup = [part.file_size for part in parts if part.filename.endswith((".xml", ".rels"))]
    _check_size(sum(markup), UNPACKED_XML, "bytes of XML")
    stream.seek(0)
    writer = _Writer()
    document = Document(stream)
    count = sum(1 for _ in document.element.body.iter(f"{_W}p", f"{_W}tr"))
    _check_size(count, PARAGRAPHS_OF_DOCX, "paragraphs and rows")
    # Paragraph.style searches all styles, which takes milliseconds per paragraph.
    names = {style.style_id: style.name or "" for style in document.styles}
    for element in list(document.element.body.iter(_FALLBACK, *_WRAPPERS)):
        for child in list(element) if element.tag != _FALLBACK else ():
            element.addprevious(child)
        element.getparent().remove(element)
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            rows = (dict.fromkeys(cell._tc for cell in row.cells) for row in block.rows)
            writer.add("\n".join(CELL_SEPARATOR.join(map(_cell, row)) for row in rows))
            continue
        # A paragraph can contain text boxes, whose text consists of other paragraphs.
        for paragraph in block._p.iter(f"{_W}p"):
            name = names.get(paragraph.style or "", "")
            level = re.fullmatch(r"Heading (\d)", name, re.I)
            writer.add(paragraph.text, int(level[1]) if level else 0 if name == "Title" else None)
    return writer.extracted()


def _cell(element: Any) -> str:
    """Return the text of a table cell, including nested tables, as one line."""
    return " ".join(" ".join(part.text for part in element.iter(f"{_W}p")).split())


def _check_size(size: int, limit: int, unit: str) -> None:
    if size > limit:
        raise DataError(
            f"the file unpacks to more than {limit:,} {unit}; split the document, or remove it"
        )


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
"""Settings that disable includes, raw content and configuration files."""


def rst(text: str) -> Extracted:
    """Extract the text of reStructuredText. The content of Sphinx directives is kept unchanged."""
    from docutils import nodes
    from docutils.core import publish_doctree

    skipped = (nodes.comment, nodes.substitution_definition, nodes.pending, nodes.raw, nodes.image)
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
                # The message reports an unknown directive, such as one that Sphinx defines.
                for block in child.findall(nodes.literal_block):
                    writer.add(block.astext())
            elif isinstance(child, nodes.TextElement):
                writer.add(child.astext())
            elif not isinstance(child, skipped):
                walk(child, level)

    tree = publish_doctree(text, settings_overrides=RST)
    walk(tree, 0)
    return writer.extracted()


# ---- Jupyter


def notebook(text: str) -> Extracted:
    """Extract the text cells and code cells of a Jupyter notebook, without the outputs.

    Args:
        text: The notebook as JSON.

    Raises:
        DataError: If the notebook is invalid.
    """
    try:
        data = json.loads(text)
        # In version 3 of the format, worksheets contain the cells.
        sheets = data.get("worksheets") or [data]
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        sources = [(cell["cell_type"], cell.get("source", cell.get("input", ""))) for cell in cells]
        parts = [(kind, part if isinstance(part, str) else "".join(part)) for kind, part in sources]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"invalid notebook ({type(error).__name__}: {error}); replace it") from None
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


# ---- All formats

CONVERTED: Mapping[str, Callable[[Any], Extracted]] = {
    ".html": html,
    ".htm": html,
    ".pdf": pdf,
    ".docx": docx,
    ".rst": rst,
    ".ipynb": notebook,
}
"""Function that converts each file type other than plain text and Markdown."""

BINARY = (".pdf", ".docx")

NEEDS = {".pdf": "pypdf", ".docx": "docx", ".rst": "docutils"}
"""Module that a file type requires. The extra `search` installs all of them."""


def install_hint(kind: str) -> str | None:
    """Return how to install the module that a file type requires, or None if it is installed."""
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        return "run pip install 'bertkit[search]'"
    return None


def convert(file: Path) -> Extracted:
    """Extract the text of a file.

    Args:
        file: A file of one of the types in `CONVERTED`.

    Raises:
        DataError: If the file cannot be read; the message contains its path.
    """
    kind = suffix(file)
    try:
        if kind not in BINARY:
            return _clean(CONVERTED[kind](read_text(file)))
        with open_bytes(file) as stream:
            return _clean(CONVERTED[kind](io.BytesIO(stream.read())))
    except DataError as error:
        text = str(error)
        raise DataError(text if text.startswith(str(file)) else f"{file}: {text}") from None
    except MemoryError:
        raise
    except Exception as error:
        # Libraries raise exceptions of many types for damaged files.
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(f"{file}: damaged, or not {kind} ({reason}); replace this file") from None


_UNPRINTED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def _clean(extracted: Extracted) -> Extracted:
    """Replace control characters and lone surrogates with U+FFFD, so that offsets do not change."""
    if not _UNPRINTED.search(extracted.text):
        return extracted
    return msgspec.structs.replace(extracted, text=_UNPRINTED.sub("\ufffd", extracted.text))
