"""Functions that read tagged text: words with one tag per word, or raw text with entity spans.

Supported files are CoNLL-style columns, and `.jsonl` rows with character spans. Files are in UTF-8
and may be compressed (`.gz`). Invalid input raises a DataError that names the file and the line.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.data.columns import check_columns
from bertkit.data.document_readers import read_text
from bertkit.data.row_readers import Rows, Source, has_records, read_records
from bertkit.data.tag_schemes import IOB2, Entity, look_like_tags, scheme_of
from bertkit.data.word_columns import WordParts, split_words, words_of
from bertkit.errors import ConfigError, DataError, did_you_mean


@dataclass(frozen=True)
class TaggedText:
    """Text that is split into words, with one tag per word in any scheme.

    Attributes:
        text: The text.
        word_spans: Start and end (exclusive) of each word in the text, in characters.
        tags: Tag of each word, or None if the text is not tagged.
        where: File and line, for error messages.
        line_a_word: Whether the file contains one word per line. The first word is at `where`.
    """

    text: str
    word_spans: list[tuple[int, int]]
    tags: list[str] | None = None
    where: str = "a text"
    line_a_word: bool = False

    @property
    def words(self) -> list[str]:
        return [self.text[start:end] for start, end in self.word_spans]

    @cached_property
    def parts(self) -> WordParts:
        """Parts into which the words are split, as in raw text."""
        return split_words(self.text, self.word_spans)

    def where_is(self, word: int) -> str:
        """Return the file and line of a word, or of the text if the word's line is unknown."""
        file, _, line = self.where.rpartition(":")
        return f"{file}:{int(line) + word}" if self.line_a_word else self.where


@dataclass(frozen=True)
class SpanText:
    """Raw text with its entities, each with its start, end (exclusive, in characters) and label.

    Entities are sorted and do not overlap.
    """

    text: str
    entities: list[tuple[int, int, str]]
    where: str


class Aligned(NamedTuple):
    """Result of `align`: IOB2 tags of words, and how many entities were expanded or skipped."""

    tags: list[str]
    expanded: int
    skipped: int


def read_tagged(source: Source, *, word: int, tag: int | None) -> tuple[list[TaggedText], str]:
    """Read tagged texts from spans in .jsonl rows, or from the columns of any other file.

    Args:
        source: The file or rows.
        word: Number of the column that contains the words.
        tag: Number of the column that contains the tags, or None to detect this column.

    Returns:
        The texts, and a summary for the log.

    Raises:
        DataError: If the file is invalid, or has no column with tags.
    """
    if isinstance(source, Path) and not has_records(source):
        sentences = read_conll(source, word=word, tag=tag)
        if sentences[0].tags is None:
            raise DataError(f"{sentences[0].where}: only a column of words; add a column of tags")
        return sentences, _summary(source, "sentences", sentences)
    texts, expanded, skipped = [], 0, 0
    for row in read_spans(source):
        spans = words_of(row.text)
        aligned = align(row.entities, spans)
        expanded, skipped = expanded + aligned.expanded, skipped + aligned.skipped
        texts.append(TaggedText(row.text, spans, aligned.tags, row.where))
    summary = _summary(source, "texts", texts)
    if expanded:
        summary += f"; entities expanded to whole words: {expanded:,}"
    if skipped:
        summary += f"; entities skipped because they contain no separate word: {skipped:,}"
    return texts, summary


def read_untagged(source: Source, *, word: int, tag: int | None) -> tuple[list[TaggedText], str]:
    """Read texts without tags from rows with texts, or from a file with a column of words.

    Args:
        source: The file or rows.
        word: Number of the column that contains the words.
        tag: Number of the column that contains tags, which are ignored.

    Returns:
        The texts, and a summary for the log.

    Raises:
        DataError: If the file is invalid.
    """
    if isinstance(source, Path) and not has_records(source):
        sentences = [replace(text, tags=None) for text in read_conll(source, word=word, tag=tag)]
        return sentences, _summary(source, "sentences", sentences)
    table = Rows.read(source) if isinstance(source, Path) else source
    check_columns(table, "text")
    texts = [untagged(text, table.where(i)) for i, text in enumerate(table.texts("text"))]
    return texts, _summary(source, "texts", texts)


def untagged(text: str, where: str = "a text") -> TaggedText:
    """Split raw text into words.

    Args:
        text: The text.
        where: File and line, for error messages.

    Raises:
        DataError: If the text contains a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}, character {error.start}: lone surrogate; replace the character with "
            'text.encode("utf-8", "replace").decode()'
        ) from None
    return TaggedText(text, words_of(text), where=where)


def _summary(source: Source, unit: str, texts: Sequence[TaggedText]) -> str:
    words = sum(len(text.word_spans) for text in texts)
    summary = f"{source}: {len(texts):,} {unit}, {words:,} words"
    if prefix := _language_prefix(texts):
        summary += f"; warning: all words begin with {prefix!r}; remove this prefix"
    tags = [text.tags for text in texts if text.tags is not None]
    if not tags:
        return summary
    scheme = scheme_of(tags)
    names = {tag for sentence in tags for tag in sentence}
    if scheme is None:
        return f"{summary}; {len(names)} different tags"
    types = sorted({name[2:] for name in names if name != "O"})
    return f"{summary}; tags in {scheme.name.upper()}: {', '.join(types) or 'no entities'}"


def _language_prefix(texts: Sequence[TaggedText]) -> str | None:
    """Return the language code that precedes all words, as in WikiANN (en:London), or None."""
    prefixes = {word[: word.find(":") + 1] for text in texts for word in text.words}
    if len(prefixes) == 1 and re.fullmatch(r"[a-z]{2,3}(-[a-z]+)?:", prefix := prefixes.pop()):
        return prefix
    return None


# ---- Columns


def read_conll(path: Path, *, word: int = 0, tag: int | None = None) -> list[TaggedText]:
    """Read sentences from a column file, in which each line contains a word and usually its tag.

    Columns are separated by tabs or spaces, and blank lines separate sentences. Lines that begin
    with -DOCSTART- are skipped. Comment lines (`# ...`) before a sentence are skipped unless they
    have as many columns as the other lines.

    Args:
        path: The file.
        word: Column of the words, counted from 0, or backward from -1.
        tag: Column of the tags, counted from 0, or backward from -1. By default, this is the first
            column after the words in which most values look like entity tags (O or B-TYPE). A
            column of chunk tags (B-NP) is chosen only if there is no other such column. If no
            column looks like entity tags, the last column is used.

    Raises:
        DataError: If lines have different numbers of columns, or the tags violate the rules of
            every scheme. The message names the file and the line.
    """
    path = Path(path)
    lines = read_text(path).split("\n")
    groups = _groups(path, lines)
    count = len(groups[0][0][1])
    word_at = _column(path, word, count, "word")
    values = list(zip(*(cells for group in groups for _, cells in group), strict=True))
    tag_at = None
    if look_like_tags(values[word_at]):
        raise DataError(f"{path}: column {word_at} contains tags; set --text-column to the words")
    if tag is not None:
        tag_at = _column(path, tag, count, "tag")
        if tag_at == word_at:
            raise DataError(f"{path}: column {tag} contains the words; use another for tags")
    elif count > 1:
        others = [i for i in range(count) if i != word_at]
        after = [i for i in others if i > word_at and look_like_tags(values[i])]
        entities = [i for i in after if not _are_chunks(values[i])]
        tag_at = [*entities, *after, others[-1]][0]
    for group in groups:
        for line, cells in group:
            if not cells[word_at] or (tag_at is not None and not cells[tag_at]):
                raise DataError(f"{path}:{line}: empty word or tag; fix this line")
    sentences = [
        _sentence(
            f"{path}:{group[0][0]}",
            [cells[word_at] for _, cells in group],
            None if tag_at is None else [cells[tag_at] for _, cells in group],
        )
        for group in groups
    ]
    scheme_of([text.tags or [] for text in sentences], lambda i, word: sentences[i].where_is(word))
    return sentences


CHUNKS = frozenset(["NP", "VP", "PP", "ADVP", "ADJP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"])
"""Phrase types in the chunk column of CoNLL-2003, which precedes the column of entity tags (Tjong
Kim Sang & Buchholz 2000).
"""


def _are_chunks(tags: Sequence[str]) -> bool:
    return {tag[2:] for tag in tags if tag[1:2] == "-"} <= CHUNKS


def _sentence(location: str, words: list[str], tags: list[str] | None) -> TaggedText:
    """Create a sentence by joining words with spaces. In the file, each word is on its own line."""
    ends = list(accumulate(len(word) + 1 for word in words))
    spans = [(end - 1 - len(word), end - 1) for end, word in zip(ends, words, strict=True)]
    return TaggedText(" ".join(words), spans, tags, location, line_a_word=True)


def _groups(path: Path, lines: list[str]) -> list[list[tuple[int, list[str]]]]:
    """Split lines into sentences, and return the line number and cells of each row.

    All rows must have the same number of cells.
    """
    rows = [
        (number, line.rstrip(" \t\r"))
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("-DOCSTART-")
    ]
    if not rows:
        raise DataError(f"{path}: the file contains no words")
    first, sample = next((row for row in rows if row[1].split()[0] != "#"), rows[0])
    tabs = "\t" in sample
    count = len(_cells(sample, tabs))
    groups: list[list[tuple[int, list[str]]]] = [[]]
    last = 0
    for number, line in rows:
        if number != last + 1 and groups[-1]:
            groups.append([])
        cells = _cells(line, tabs)
        if len(cells) != count:
            if not groups[-1] and line.split()[0] == "#":
                continue
            raise DataError(
                f"{path}:{number}: expected {count} columns separated by "
                f"{'tabs' if tabs else 'spaces'} as in line {first}, got {len(cells)}; fix the line"
            )
        groups[-1].append((number, cells))
        last = number
    return groups if groups[-1] else groups[:-1]


def _cells(line: str, tabs: bool) -> list[str]:
    # Other white space, such as a no-break space, can be part of a word.
    if tabs:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.replace("\t", " ").split(" ") if cell]


def column_number(option: str, column: str) -> int:
    """Convert the value of a column option to a number.

    Raises:
        ConfigError: If the value is not an integer.
    """
    try:
        return int(column)
    except ValueError:
        raise ConfigError(
            f"{option}: expected a column number from 0, or backward from -1, got {column!r}"
        ) from None


def _column(path: Path, column: int, count: int, role: str) -> int:
    if not -count <= column < count:
        raise DataError(
            f"{path}: no column {column} for the {role}; the file has {count} columns, "
            "numbered from 0"
        )
    return column % count


# ---- Character spans


def read_spans(source: Source) -> list[SpanText]:
    """Read texts with entity spans from rows.

    A row has the form {"text": ..., "entities": [{"start": ..., "end": ..., "label": ...}, ...]}.
    An entity may also be a list [start, end, label].

    Raises:
        DataError: If a row has a different form, or an entity is empty, is outside the text, or
            overlaps another entity. The message names the file and the line.
    """
    if not has_records(source):
        raise DataError(f"{source}: expected a .jsonl or .jsonl.gz file with entity spans")

    def read(location: str, row: dict[str, Any]) -> SpanText:
        text, entities = (_field(row, name, kind, location) for name, kind in _FIELDS)
        return SpanText(text, _entities(text, entities, location), location)

    texts = read_records(read, source)
    if not texts:
        raise DataError(f"{source}: the file contains no rows")
    return texts


_FIELDS = (("text", str), ("entities", list))


def _field(row: dict[str, Any], name: str, kind: type, location: str) -> Any:
    if name not in row:
        raise DataError(f"{location}: no field {name!r}; {did_you_mean(name, row)}")
    if not isinstance(row[name], kind):
        expected, actual = "text" if kind is str else "a list", type(row[name]).__name__
        raise DataError(f"{location}: field {name!r} must contain {expected}, got {actual}")
    return row[name]


def _entities(text: str, listed: list[Any], location: str) -> list[tuple[int, int, str]]:
    entities: list[tuple[int, int, str]] = []
    for entity in listed:
        match entity:
            case {"start": int(start), "end": int(end), "label": str(label)} if label:
                pass
            case [int(start), int(end), str(label)] if label:
                pass
            case _:
                raise DataError(
                    f"{location}: entity {entity!r} must be "
                    '{"start": number, "end": number, "label": text} or [start, end, label]'
                )
        if isinstance(start, bool) or isinstance(end, bool) or not 0 <= start < end <= len(text):
            raise DataError(
                f"{location}: entity {start}:{end} ({label}) is outside the text of {len(text)} "
                "characters, or empty; use 0 <= start < end <= length"
            )
        entities.append((start, end, label))
    entities.sort()
    for first, second in pairwise(entities):
        if second[0] < first[1]:
            raise DataError(
                f"{location}: entities {first[0]}:{first[1]} ({first[2]}) and "
                f"{second[0]}:{second[1]} ({second[2]}) overlap; remove one of them"
            )
    return entities


def align(entities: Sequence[tuple[int, int, str]], words: Sequence[tuple[int, int]]) -> Aligned:
    """Convert entities with character offsets to IOB2 tags of words.

    An entity that begins or ends inside a word is expanded to whole words. An entity is skipped if
    it contains no word, or if its first word belongs to the previous entity.

    Args:
        entities: Entities (start, end, label), which are sorted and do not overlap.
        words: Start and end (exclusive) of each word, in characters.
    """
    starts, ends = [start for start, _ in words], [end for _, end in words]
    matches: list[Entity] = []
    expanded = skipped = free = 0
    for start, end, label in entities:
        first, after = bisect_right(ends, start), bisect_left(starts, end)
        if first >= after or first < free:
            skipped += 1
            continue
        expanded += starts[first] < start or end < ends[after - 1]
        matches.append(Entity(first, after, label))
        free = after
    return Aligned(IOB2.encode(matches, len(words)), expanded, skipped)
