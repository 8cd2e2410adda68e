"""Documents cut into passages where they have parts: at headings, paragraphs and sentences."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.extensions.search.document_formats import Heading
from bertkit.extensions.search.documents import Document
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

HEADING_SEPARATOR = " > "
"""What stands between a heading and the one above it."""

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_SENTENCE = re.compile(r"[.!?][\"'”’)\]]*\s+|\n\s*|(?<=[。！？])")


Tokens = Callable[[int, int], int]
"""How many tokens characters [start, end) of a text have."""


@dataclass(frozen=True)
class Section:
    """Characters [start, end) of a document, with the headings above them.

    `heading` is all of them, for people; `context` those that the part does not begin with, for the
    model.
    """

    start: int
    end: int
    heading: str = ""
    context: str = ""


def cut(documents: Sequence[Document], tokenizer: Tokenizer, room: int) -> list[list[Section]]:
    """The parts of each document, of at most `room` tokens each where its sentences allow.

    Parts are adjacent and cover the document. A part begins at each page, and at each heading that
    is followed by text. Between them, a part contains as many paragraphs as there is room for, or
    sentences if a paragraph is longer.
    """
    texts = [document.text for document in documents]
    encodings = tokenizer.encode_batch(texts, max_length=NO_LIMIT)
    parts = []
    for document, encoding in zip(documents, encodings, strict=True):
        real = [which is not None for which in encoding.sequence]
        parts.append(list(_parts(document, encoding.offsets[real, 0], room)))
    return parts


def _parts(document: Document, starts: NDArray[np.int64], room: int) -> Iterator[Section]:
    def tokens(start: int, end: int) -> int:
        first, last = np.searchsorted(starts, (start, end))
        return int(last - first)

    for begin, end, path in _sections(document):
        titles = [heading.title for heading in path]
        # the first part begins with the section's own headings
        first = _context([heading for heading in path if heading.start < begin], tokens, room)
        later = _context(path, tokens, room)
        body = max([begin, *(heading.end for heading in path)])
        body = end - len(document.text[body:end].lstrip())
        rooms = room - first[1], room - later[1]
        for top, bottom in _pages(document, begin, end):
            page = [f"page {bisect_right(document.pages, top)}"] if document.pages else []
            heading, inside = _joined(titles + page), min(max(top, body), bottom)
            # Headings at the end of a page are a part, so that no part has two pages.
            for start, stop in _packed(document.text, top, inside, bottom, rooms, tokens):
                context, _ = first if start == begin else later
                yield Section(start, stop, heading, context)
            rooms = rooms[1], rooms[1]


def _pages(document: Document, begin: int, end: int) -> Iterable[tuple[int, int]]:
    """Return the start and end of the part of each page in characters [begin, end)."""
    starts = sorted({page for page in document.pages if begin < page < end})
    return zip([begin, *starts], [*starts, end], strict=True)


def _context(above: Sequence[Heading], tokens: Tokens, room: int) -> tuple[str, int]:
    """Headings for the model, and about how many tokens they have: a quarter of `room` at most.

    The nearest stay, as they say most.
    """
    kept: list[str] = []
    count = 0
    for heading in reversed(above):
        count += tokens(heading.start, heading.end) + 2
        if count > room // 4:
            break
        kept.insert(0, heading.title)
    return _joined(kept), min(count, room // 4)


def _joined(titles: Sequence[str]) -> str:
    """Titles in a line; a page's title is often its first heading, too."""
    return HEADING_SEPARATOR.join(title for title, _ in itertools.groupby(titles))


def _sections(document: Document) -> Iterator[tuple[int, int, list[Heading]]]:
    """Where each section begins and ends, and the headings above it, its own last.

    A heading without a text below it begins the section of the next.
    """
    text = document.text
    path: list[Heading] = []
    if not document.headings:
        yield 0, len(text), []
        return
    begin = 0
    if text[: document.headings[0].start].strip():
        begin = document.headings[0].start
        yield 0, begin, []
    ends = [*(heading.start for heading in document.headings[1:]), len(text)]
    for heading, end in zip(document.headings, ends, strict=True):
        path = [above for above in path if above.level < heading.level]
        path.append(heading)
        if text[heading.end : end].strip() or end == len(text):
            yield begin, end, list(path)
            begin = end


def _packed(
    text: str, begin: int, body: int, end: int, rooms: tuple[int, int], tokens: Tokens
) -> Iterator[tuple[int, int]]:
    """A section in pieces, each of as many paragraphs as there is room for: first, and later.

    Headings, which end where the `body` begins, never stand alone.
    """
    start = stop = begin
    room, later = rooms
    for first, last in _pieces(text, begin, end, _PARAGRAPH):
        whole = tokens(start if stop <= body else first, last) <= room
        for one, other in [(first, last)] if whole else _pieces(text, first, last, _SENTENCE):
            if stop > max(start, body) and tokens(start, other) > room:
                yield start, stop
                start, room = one, later
            stop = other
    if stop > start:
        yield start, stop


def _pieces(text: str, begin: int, end: int, between: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Stretches that lie beside each other, each with what ends it."""
    start = begin
    for match in between.finditer(text, begin, end):
        if start < match.end() < end:
            yield start, match.end()
            start = match.end()
    if start < end:
        yield start, end
