"""Files of tagged text: words with a tag each, or raw text with spans.

What is read: CoNLL-style columns and `.jsonl` rows with character spans, each also as `.gz`, in
UTF-8. Whatever is wrong is a DataError that names file and line.
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
from bertkit.data.row_readers import Rows, Source, each_record, has_records
from bertkit.data.tag_schemes import IOB2, Entity, look_like_tags, scheme_of
from bertkit.data.word_columns import WordParts, split_words, words_of
from bertkit.errors import ConfigError, DataError, did_you_mean


@dataclass(frozen=True)
class TaggedText:
    """A text, its words, and a tag for each, in any scheme; None where tags are to be predicted.

    Units: `word_spans` are [start, end) characters of the text, a pair for each word.
    """

    text: str
    word_spans: list[tuple[int, int]]
    tags: list[str] | None = None
    where: str = "a text"
    """File and line, for messages."""
    line_a_word: bool = False
    """Whether each word stands on a line of its own, the first at `where`."""

    @property
    def words(self) -> list[str]:
        return [self.text[start:end] for start, end in self.word_spans]

    @cached_property
    def parts(self) -> WordParts:
        """The words, split like raw text."""
        return split_words(self.text, self.word_spans)

    def where_is(self, word: int) -> str:
        """File and line of a word, as near as it is known."""
        file, _, line = self.where.rpartition(":")
        return f"{file}:{int(line) + word}" if self.line_a_word else self.where


@dataclass(frozen=True)
class SpanText:
    """Raw text and its entities (start, end, label), sorted and apart: characters [start, end)."""

    text: str
    entities: list[tuple[int, int, str]]
    where: str


class Aligned(NamedTuple):
    """Tags (IOB2) of a text's words; how many entities grew to whole words, how many were lost."""

    tags: list[str]
    grown: int
    lost: int


def read_tagged(source: Source, *, word: int, tag: int | None) -> tuple[list[TaggedText], str]:
    """Tagged texts of a file, and how it was read: spans of .jsonl, columns of any other file.

    Raises: DataError as `read_spans` and `read_conll` do, and for words without tags.
    """
    if isinstance(source, Path) and not has_records(source):
        sentences = read_conll(source, word=word, tag=tag)
        if sentences[0].tags is None:
            raise DataError(f"{sentences[0].where}: only words and no tags; give a column of tags")
        return sentences, _summary(source, "sentences", sentences)
    texts, grown, lost = [], 0, 0
    for row in read_spans(source):
        spans = words_of(row.text)
        aligned = align(row.entities, spans)
        grown, lost = grown + aligned.grown, lost + aligned.lost
        texts.append(TaggedText(row.text, spans, aligned.tags, row.where))
    summary = _summary(source, "texts", texts)
    if grown:
        summary += f"; entities grown to whole words: {grown:,}"
    if lost:
        summary += f"; entities left out, as no word is theirs alone: {lost:,}"
    return texts, summary


def read_untagged(source: Source, *, word: int, tag: int | None) -> tuple[list[TaggedText], str]:
    """The same without tags; rows of .jsonl hold a text."""
    if isinstance(source, Path) and not has_records(source):
        sentences = [replace(one, tags=None) for one in read_conll(source, word=word, tag=tag)]
        return sentences, _summary(source, "sentences", sentences)
    table = Rows.read(source) if isinstance(source, Path) else source
    check_columns(table, "text")
    texts = [untagged(text, table.where(i)) for i, text in enumerate(table.texts("text"))]
    return texts, _summary(source, "texts", texts)


def untagged(text: str, where: str = "a text") -> TaggedText:
    """Raw text and its words. Raises: DataError for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}, character {error.start}: half of a surrogate pair is no character; clean "
            'the text with text.encode("utf-8", "replace").decode()'
        ) from None
    return TaggedText(text, words_of(text), where=where)


def _summary(source: Source, unit: str, texts: Sequence[TaggedText]) -> str:
    words = sum(len(text.word_spans) for text in texts)
    summary = f"{source}: {len(texts):,} {unit}, {words:,} words"
    if prefix := _language(texts):
        summary += f"; every word begins with {prefix!r}, which is no part of it: take it off"
    tags = [text.tags for text in texts if text.tags is not None]
    if not tags:
        return summary
    scheme = scheme_of(tags)
    names = {tag for sentence in tags for tag in sentence}
    if scheme is None:
        return f"{summary}; {len(names)} different tags"
    types = sorted({name[2:] for name in names if name != "O"})
    return f"{summary}; tags in {scheme.name.upper()}: {', '.join(types) or 'no entities'}"


def _language(texts: Sequence[TaggedText]) -> str | None:
    """A language before each word, as WikiANN has it: en:London."""
    prefixes = {word[: word.find(":") + 1] for text in texts for word in text.words}
    if len(prefixes) == 1 and re.fullmatch(r"[a-z]{2,3}(-[a-z]+)?:", prefix := prefixes.pop()):
        return prefix
    return None


# ---- columns


def read_conll(path: Path, *, word: int = 0, tag: int | None = None) -> list[TaggedText]:
    """The sentences of a file with a word a line, its columns apart by tabs or else spaces.

    Blank lines end sentences. Lines of -DOCSTART- are skipped, and so are comments (`# ...`
    before a sentence) unless they have as many columns as the words. Columns count from 0, or
    backwards from -1; `tag` None takes the first column after the word's where most values look
    like O and B-TYPE, one of chunks (B-NP) only where there is no other; else the last one.
    Raises: DataError naming file and line: columns of unequal number, tags that fit no scheme.
    """
    path = Path(path)
    lines = read_text(path).split("\n")
    groups = _groups(path, lines)
    count = len(groups[0][0][1])
    word_at = _column(path, word, count, "word")
    values = list(zip(*(cells for group in groups for _, cells in group), strict=True))
    tag_at = None
    if tag is not None:
        tag_at = _column(path, tag, count, "tag")
        if tag_at == word_at:
            raise DataError(f"{path}: column {tag} cannot hold both words and tags; name another")
    elif count > 1:
        others = [i for i in range(count) if i != word_at]
        after = [i for i in others if i > word_at and look_like_tags(values[i])]
        named = [i for i in after if not _are_chunks(values[i])]
        tag_at = [*named, *after, others[-1]][0]
    for group in groups:
        for line, cells in group:
            if not cells[word_at] or (tag_at is not None and not cells[tag_at]):
                raise DataError(f"{path}:{line}: an empty word or tag; mend this line")
    sentences = [
        _sentence(
            f"{path}:{group[0][0]}",
            [cells[word_at] for _, cells in group],
            None if tag_at is None else [cells[tag_at] for _, cells in group],
        )
        for group in groups
    ]
    scheme_of(
        [one.tags or [] for one in sentences], lambda one, word: sentences[one].where_is(word)
    )
    return sentences


CHUNKS = frozenset(["NP", "VP", "PP", "ADVP", "ADJP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"])
"""Phrases that stand before the names in the files of CoNLL-2003 (Tjong Kim Sang & Buchholz 2000).
"""


def _are_chunks(tags: Sequence[str]) -> bool:
    return {tag[2:] for tag in tags if tag[1:2] == "-"} <= CHUNKS


def _sentence(where: str, words: list[str], tags: list[str] | None) -> TaggedText:
    """Words with a space between any two; a line each."""
    ends = list(accumulate(len(word) + 1 for word in words))
    spans = [(end - 1 - len(word), end - 1) for end, word in zip(ends, words, strict=True)]
    return TaggedText(" ".join(words), spans, tags, where, line_a_word=True)


def _groups(path: Path, lines: list[str]) -> list[list[tuple[int, list[str]]]]:
    """The rows (line, cells) of each sentence, all equally long."""
    rows = [
        (number, line.rstrip(" \t\r"))
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("-DOCSTART-")
    ]
    if not rows:
        raise DataError(f"{path}: the file holds no words")
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
                f"{path}:{number}: expected {count} columns ({'tabs' if tabs else 'spaces'} "
                f"between) as in line {first}, found {len(cells)}; mend this line"
            )
        groups[-1].append((number, cells))
        last = number
    return groups if groups[-1] else groups[:-1]


def _cells(line: str, tabs: bool) -> list[str]:
    # not split(): other white space, such as a no-break space, may belong to a word
    if tabs:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.replace("\t", " ").split(" ") if cell]


def column_number(option: str, column: str) -> int:
    """What names a column of tags. Raises: ConfigError for what is no number."""
    try:
        return int(column)
    except ValueError:
        raise ConfigError(
            f"{option}: {column!r} is no column; they are counted from 0, or back from -1"
        ) from None


def _column(path: Path, column: int, count: int, what: str) -> int:
    if not -count <= column < count:
        raise DataError(
            f"{path}: no column {column} for the {what}; there are {count}, counted from 0"
        )
    return column % count


# ---- spans of characters


def read_spans(source: Source) -> list[SpanText]:
    """The rows {"text": ..., "entities": [{"start": ..., "end": ..., "label": ...}, ...]}.

    An entity may also be a list [start, end, label].
    Raises: DataError naming file and line: not such a row, offsets outside the text or reversed,
    entities that overlap.
    """
    if not has_records(source):
        raise DataError(f"{source}: spans are read from .jsonl files, also .gz")

    def read(where: str, row: dict[str, Any]) -> SpanText:
        text, listed = (_field(row, name, kind, where) for name, kind in _FIELDS)
        return SpanText(text, _entities(text, listed, where), where)

    texts = each_record(read, source)
    if not texts:
        raise DataError(f"{source}: the file holds no rows")
    return texts


_FIELDS = (("text", str), ("entities", list))


def _field(row: dict[str, Any], name: str, kind: type, where: str) -> Any:
    if name not in row:
        raise DataError(f"{where}: no field {name!r}; {did_you_mean(name, row)}")
    if not isinstance(row[name], kind):
        wanted = "text" if kind is str else "a list"
        raise DataError(f"{where}: field {name!r} holds a {type(row[name]).__name__}, not {wanted}")
    return row[name]


def _entities(text: str, listed: list[Any], where: str) -> list[tuple[int, int, str]]:
    entities: list[tuple[int, int, str]] = []
    for entity in listed:
        match entity:
            case {"start": int(start), "end": int(end), "label": str(label)} if label:
                pass
            case [int(start), int(end), str(label)] if label:
                pass
            case _:
                raise DataError(
                    f"{where}: entity {entity!r} is neither "
                    '{"start": number, "end": number, "label": text} nor [start, end, label]'
                )
        if isinstance(start, bool) or isinstance(end, bool) or not 0 <= start < end <= len(text):
            raise DataError(
                f"{where}: entity {start}:{end} ({label}) is no span of a text of {len(text)} "
                "characters; start counts from 0, end is one past the last"
            )
        entities.append((start, end, label))
    entities.sort()
    for one, other in pairwise(entities):
        if other[0] < one[1]:
            raise DataError(
                f"{where}: entities {one[0]}:{one[1]} ({one[2]}) and {other[0]}:{other[1]} "
                f"({other[2]}) overlap; keep one of them"
            )
    return entities


def align(entities: Sequence[tuple[int, int, str]], words: Sequence[tuple[int, int]]) -> Aligned:
    """Entities in characters as tags of words; both sorted and apart.

    An entity that begins or ends inside a word grows to whole words. One that holds no word, or
    whose first word belongs to the entity before it, is lost.
    """
    starts, ends = [start for start, _ in words], [end for _, end in words]
    matches: list[Entity] = []
    grown = lost = free = 0
    for start, end, label in entities:
        first, after = bisect_right(ends, start), bisect_left(starts, end)
        if first >= after or first < free:
            lost += 1
            continue
        grown += starts[first] < start or end < ends[after - 1]
        matches.append(Entity(first, after, label))
        free = after
    return Aligned(IOB2.encode(matches, len(words)), grown, lost)
