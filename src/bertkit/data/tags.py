"""Tagged text: words with a tag each, or raw text with spans, and the schemes that tags follow.

What is read: CoNLL-style columns and `.jsonl` rows with character spans, each also as `.gz`, in
UTF-8. Whatever is wrong is a DataError that names file and line.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertkit.data.readers import json_object, read_text, suffix
from bertkit.errors import DataError, did_you_mean

Scheme = Literal["iob1", "iob2", "bioes"]
"""How tags mark entities. iob2: B- begins each, I- goes on. iob1: I- throughout, and B- begins
one directly after another of its type. bioes: B- I- E- for several words, S- for a single one."""


class Entity(NamedTuple):
    """Words [start, end) of a sentence, and what they are."""

    start: int
    end: int
    type: str


@dataclass(frozen=True)
class Sentence:
    """Words with a tag each; `tags` is None where the file has only words.

    Units: `line`, that of the first word, counts from 1; the other words follow line by line.
    """

    words: list[str]
    tags: list[str] | None
    line: int


@dataclass(frozen=True)
class SpanText:
    """Raw text and its entities (start, end, label), sorted and apart: characters [start, end).

    Units: `line` counts from 1.
    """

    text: str
    entities: list[tuple[int, int, str]]
    line: int


class Aligned(NamedTuple):
    """Tags (IOB2) of a text's words; how many entities grew to whole words, how many were lost."""

    tags: list[str]
    grown: int
    lost: int


# ---- schemes


def spans(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in any scheme, also where tags break its rules.

    The lenient reading of conlleval and of seqeval's default: an entity begins at B- or S-, after
    O, E- or S-, and where the type changes.
    """
    found: list[Entity] = []
    before, type_before = "O", ""
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        kind = kind or "_"
        begins = prefix in ("B", "S") or before in ("O", "E", "S") or kind != type_before
        if prefix != "O" and begins:
            found.append(Entity(i, i + 1, kind))
        elif prefix != "O":
            found[-1] = found[-1]._replace(end=i + 1)
        before, type_before = prefix, kind
    return found


def encode(entities: Sequence[Entity], length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence of `length` words; `spans` gives the entities back.

    Raises: DataError for entities that overlap, are not sorted, or lie outside the sentence.
    """
    tags = ["O"] * length
    end, type_before = 0, ""
    for entity in entities:
        start, kind = entity.start, entity.type
        if not end <= start < entity.end <= length:
            raise DataError(
                f"entity {tuple(entity)} overlaps another or lies outside a sentence of {length} "
                "words; give entities sorted and apart"
            )
        touches = start > 0 and start == end and kind == type_before
        first = "I" if scheme == "iob1" and not touches else "B"
        end, type_before = entity.end, kind
        tags[start:end] = [f"{first}-{kind}"] + [f"I-{kind}"] * (end - start - 1)
        if scheme == "bioes":
            tags[end - 1] = f"S-{kind}" if end == start + 1 else f"E-{kind}"
    return tags


def scheme_of(sentences: Sequence[Sequence[str]]) -> Scheme | Literal["none"]:
    """The scheme that tags follow: "none" where most have no such form, as parts of speech.

    Tags that are all O count as iob2.
    Raises: DataError naming the first tag that fits no scheme, or not that of the others.
    """
    scheme, fault = _judge(sentences)
    if fault:
        raise DataError(f"sentence {fault.sentence + 1}, word {fault.word + 1}: {fault.said}")
    return scheme


class _Fault(NamedTuple):
    sentence: int
    word: int
    said: str


_LIKE_A_TAG = re.compile(r"O|[BIES]-.*", re.DOTALL)
_TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)


def _like_tags(values: Sequence[str]) -> bool:
    # most, not all: one wrong tag must be refused, not make the column one of another kind
    return 0 < len(values) <= 2 * sum(bool(_LIKE_A_TAG.fullmatch(value)) for value in values)


def _judge(sentences: Sequence[Sequence[str]]) -> tuple[Scheme | Literal["none"], _Fault | None]:
    """The scheme with the fewest faults, and the first of these."""
    if not _like_tags([tag for tags in sentences for tag in tags]):
        return "none", None
    best: tuple[int, Scheme, _Fault] | None = None
    schemes: tuple[Scheme, ...] = ("iob2", "iob1", "bioes")
    for scheme in schemes:
        faults = [
            _Fault(
                number,
                word,
                f"tag {tags[word]!r} does not fit {scheme.upper()}, which the other tags follow; "
                f"expected {expected}",
            )
            for number, tags in enumerate(sentences)
            for word, expected in _faults(tags, scheme)
        ]
        if not faults:
            return scheme, None
        if best is None or len(faults) < best[0]:
            best = len(faults), scheme, faults[0]
    assert best is not None
    return best[1:]


def _faults(tags: Sequence[str], scheme: Scheme) -> Iterator[tuple[int, str]]:
    """Each word whose tag breaks the scheme, and what was expected in its place."""
    before = "O"
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        goes_on = before in (f"B-{kind}", f"I-{kind}")
        opened = before[2:] if before[0] in "BI" else ""
        if not _TAG.fullmatch(tag):
            prefixes = "B-, I-, E- or S-" if scheme == "bioes" else "B- or I-"
            yield i, f"O, or {prefixes} before a type"
            tag = "O"
        elif scheme == "bioes":
            if opened and not (prefix in "IE" and goes_on):
                yield i, f"I-{opened} or E-{opened} after {before}"
            elif not opened and prefix not in "OBS":
                yield i, f"B-{kind} or S-{kind} where an entity begins"
            elif i + 1 == len(tags) and prefix in "BI":
                yield i, f"E-{kind} or S-{kind} at the end of a sentence"
        elif prefix in "ES":
            yield i, f"B-{kind} or I-{kind}"
        elif scheme == "iob2" and prefix == "I" and not goes_on:
            yield i, f"B-{kind} where an entity begins"
        elif scheme == "iob1" and prefix == "B" and not goes_on:
            yield i, f"I-{kind}, as no entity of this type ends just before"
        before = tag


# ---- columns


def read_conll(path: Path, *, word: int = 0, tag: int | None = None) -> list[Sentence]:
    """The sentences of a file with a word a line, its columns apart by tabs or else spaces.

    Blank lines end sentences. Lines of -DOCSTART- are skipped, and so are comments (`# ...`
    before a sentence) unless they have as many columns as the words. Columns count from 0, or
    backwards from -1; `tag` None takes the first column after the word's where most values look
    like O and B-TYPE, else the last one.
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
        after = [i for i in others if i > word_at and _like_tags(values[i])]
        tag_at = after[0] if after else others[-1]
    for group in groups:
        for line, cells in group:
            if not cells[word_at] or (tag_at is not None and not cells[tag_at]):
                raise DataError(f"{path}:{line}: an empty word or tag; mend this line")
    found = [
        Sentence(
            [cells[word_at] for _, cells in group],
            None if tag_at is None else [cells[tag_at] for _, cells in group],
            group[0][0],
        )
        for group in groups
    ]
    _, fault = _judge([sentence.tags or [] for sentence in found])
    if fault:
        raise DataError(f"{path}:{found[fault.sentence].line + fault.word}: {fault.said}")
    return found


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


def _column(path: Path, column: int, count: int, what: str) -> int:
    if not -count <= column < count:
        raise DataError(
            f"{path}: no column {column} for the {what}; there are {count}, counted from 0"
        )
    return column % count


# ---- spans of characters


def read_spans(path: Path) -> list[SpanText]:
    """The rows {"text": ..., "entities": [{"start": ..., "end": ..., "label": ...}, ...]}.

    An entity may also be a list [start, end, label].
    Raises: DataError naming file and line: not such a row, offsets outside the text or reversed,
    entities that overlap.
    """
    path = Path(path)
    if suffix(path) != ".jsonl":
        raise DataError(f"{path}: spans are read from .jsonl files, also .gz")
    found = []
    for number, raw in enumerate(read_text(path).split("\n"), 1):
        if raw.strip():
            where = f"{path}:{number}"
            row = json_object(raw.encode(), where)
            text, listed = (_field(row, name, kind, where) for name, kind in _FIELDS)
            try:
                text.encode()
            except UnicodeEncodeError:
                raise DataError(
                    f"{where}: half of a surrogate pair (\\ud800 to \\udfff) is no character; "
                    "write the whole pair, or \\ufffd"
                ) from None
            found.append(SpanText(text, _entities(text, listed, where), number))
    if not found:
        raise DataError(f"{path}: the file holds no rows")
    return found


_FIELDS = (("text", str), ("entities", list))


def _field(row: dict[str, Any], name: str, kind: type, where: str) -> Any:
    if name not in row:
        raise DataError(f"{where}: no field {name!r}; {did_you_mean(name, row)}")
    if not isinstance(row[name], kind):
        wanted = "text" if kind is str else "a list"
        raise DataError(f"{where}: field {name!r} holds a {type(row[name]).__name__}, not {wanted}")
    return row[name]


def _entities(text: str, listed: list[Any], where: str) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
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
        found.append((start, end, label))
    found.sort()
    for one, other in pairwise(found):
        if other[0] < one[1]:
            raise DataError(
                f"{where}: entities {one[0]}:{one[1]} ({one[2]}) and {other[0]}:{other[1]} "
                f"({other[2]}) overlap; keep one of them"
            )
    return found


# Google's BERT, tokenization.py, _is_chinese_char
_CHINESE = (
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


@lru_cache
def _splitter() -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CHINESE), "isolated"),
            pre_tokenizers.BertPreTokenizer(),
        ]
    )


def words_of(text: str) -> list[tuple[int, int]]:
    """The words of raw text as characters [start, end), by BERT's basic tokenisation.

    Words are what white space divides; each punctuation mark and each Chinese character is a word
    of its own.
    """
    return [span for _, span in _splitter().pre_tokenize_str(text)]


def align(entities: Sequence[tuple[int, int, str]], words: Sequence[tuple[int, int]]) -> Aligned:
    """Entities in characters as tags of words; both sorted and apart.

    An entity that begins or ends inside a word grows to whole words. One that holds no word, or
    whose first word belongs to the entity before it, is lost.
    """
    starts, ends = [start for start, _ in words], [end for _, end in words]
    found: list[Entity] = []
    grown = lost = free = 0
    for start, end, label in entities:
        first, after = bisect_right(ends, start), bisect_left(starts, end)
        if first >= after or first < free:
            lost += 1
            continue
        grown += starts[first] < start or end < ends[after - 1]
        found.append(Entity(first, after, label))
        free = after
    return Aligned(encode(found, len(words), "iob2"), grown, lost)
