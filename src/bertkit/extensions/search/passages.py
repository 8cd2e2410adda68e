"""Splitting of documents into passages at headings, paragraphs and sentences."""

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
"""Text that separates a heading from its parent heading."""

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_SENTENCE = re.compile(r"[.!?][\"'”’)\]]*\s+|\n\s*|(?<=[。！？])")


Tokens = Callable[[int, int], int]
"""Function that counts the tokens in characters [start, end) of a text."""


@dataclass(frozen=True)
class Section:
    """A section of a document: characters [start, end) and the headings that apply to them.

    Attributes:
        start: Offset of the first character.
        end: Offset after the last character.
        heading: All headings above the section, as shown to users.
        context: Headings that are not in the section's own text, as additional input for the model.
    """

    start: int
    end: int
    heading: str = ""
    context: str = ""


def split(documents: Sequence[Document], tokenizer: Tokenizer, size: int) -> list[list[Section]]:
    """Split documents into passages of at most `size` tokens; only a longer sentence exceeds this.

    The passages are adjacent and cover the whole document. A new passage starts at each page, and
    at each heading that is followed by text. Between these points, each passage contains as many
    paragraphs as fit. A paragraph that is too long is split into sentences.

    Args:
        documents: The documents.
        tokenizer: Tokenizer of the embedding model.
        size: Maximum number of tokens of a passage.

    Returns:
        The passages of each document.
    """
    texts = [document.text for document in documents]
    encodings = tokenizer.encode_batch(texts, max_length=NO_LIMIT)
    parts = []
    for document, encoding in zip(documents, encodings, strict=True):
        real = [sequence is not None for sequence in encoding.sequence]
        parts.append(list(_split(document, encoding.offsets[real, 0], size)))
    return parts


def _split(document: Document, starts: NDArray[np.int64], size: int) -> Iterator[Section]:
    def tokens(start: int, end: int) -> int:
        first, last = np.searchsorted(starts, (start, end))
        return int(last - first)

    for begin, end, path in _sections(document):
        titles = [heading.title for heading in path]
        # The first passage needs only the parent headings, because its text contains the others.
        first = _context([heading for heading in path if heading.start < begin], tokens, size)
        later = _context(path, tokens, size)
        body = max([begin, *(heading.end for heading in path)])
        body = end - len(document.text[body:end].lstrip())
        sizes = size - first[1], size - later[1]
        for top, bottom in _pages(document, begin, end):
            page = [f"page {bisect_right(document.pages, top)}"] if document.pages else []
            heading, inside = _join_titles(titles + page), min(max(top, body), bottom)
            # Headings at the end of a page become a passage, so that no passage spans two pages.
            for start, stop in _pack(document.text, top, inside, bottom, sizes, tokens):
                context, _ = first if start == begin else later
                yield Section(start, stop, heading, context)
            sizes = sizes[1], sizes[1]


def _pages(document: Document, begin: int, end: int) -> Iterable[tuple[int, int]]:
    """Return the start and end of each page, limited to characters [begin, end)."""
    starts = sorted({page for page in document.pages if begin < page < end})
    return zip([begin, *starts], [*starts, end], strict=True)


def _context(path: Sequence[Heading], tokens: Tokens, size: int) -> tuple[str, int]:
    """Return the headings to pass to the model, and approximately how many tokens they have.

    Headings are added from the lowest level upward, because the lowest are the most specific. In
    total, they have at most a quarter of `size` tokens.
    """
    titles: list[str] = []
    count = 0
    for heading in reversed(path):
        count += tokens(heading.start, heading.end) + 2
        if count > size // 4:
            break
        titles.insert(0, heading.title)
    return _join_titles(titles), min(count, size // 4)


def _join_titles(titles: Sequence[str]) -> str:
    """Join titles, skipping repetitions: a document's title is often also its first heading."""
    return HEADING_SEPARATOR.join(title for title, _ in itertools.groupby(titles))


def _sections(document: Document) -> Iterator[tuple[int, int, list[Heading]]]:
    """Yield the start and end of each section, and its headings from the top level down.

    If no text follows a heading, the heading becomes part of the next section.
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
        path = [parent for parent in path if parent.level < heading.level]
        path.append(heading)
        if text[heading.end : end].strip() or end == len(text):
            yield begin, end, list(path)
            begin = end


def _pack(
    text: str, begin: int, body: int, end: int, sizes: tuple[int, int], tokens: Tokens
) -> Iterator[tuple[int, int]]:
    """Split a section into passages, each with as many paragraphs as fit.

    Args:
        text: Text of the document.
        begin: Start of the section.
        body: Offset at which the text below the headings starts. Headings without text never become
            a separate passage.
        end: End of the section.
        sizes: Maximum number of tokens in the first passage, and in each later passage.
        tokens: Function that counts tokens.
    """
    start = stop = begin
    size, later_size = sizes
    for first, last in _spans(text, begin, end, _PARAGRAPH):
        fits = tokens(start if stop <= body else first, last) <= size
        for left, right in [(first, last)] if fits else _spans(text, first, last, _SENTENCE):
            if stop > max(start, body) and tokens(start, right) > size:
                yield start, stop
                start, size = left, later_size
            stop = right
    if stop > start:
        yield start, stop


def _spans(text: str, begin: int, end: int, ending: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield adjacent spans, each of which ends with a match of `ending`."""
    start = begin
    for match in ending.finditer(text, begin, end):
        if start < match.end() < end:
            yield start, match.end()
            start = match.end()
    if start < end:
        yield start, end
