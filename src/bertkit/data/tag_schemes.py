"""Tag schemes: how the tags of words mark entities (IOB1, IOB2, BIOES)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError


class Entity(NamedTuple):
    """An entity of a sentence. Units: words [start, end)."""

    start: int
    end: int
    type: str


class Masks(NamedTuple):
    """Which labels may follow each other, begin and end a sentence.

    Shapes: allowed (L, L) [from, to], starts (L,), ends (L,).
    """

    allowed: NDArray[np.bool_]
    starts: NDArray[np.bool_]
    ends: NDArray[np.bool_]


_TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)
_LIKE_A_TAG = re.compile(r"O|[BIES]-.*", re.DOTALL)


@dataclass(frozen=True)
class Scheme:
    """The rules by which tags mark entities.

    Source: Ramshaw & Marcus 1995; Ratinov & Roth 2009.
    """

    name: Literal["iob1", "iob2", "bioes"]
    prefixes: str
    """Of the tags of an entity, in the order of its labels."""

    def labels(self, types: Sequence[str]) -> list[str]:
        """O, and then all tags of each type."""
        return ["O", *(f"{prefix}-{kind}" for kind in types for prefix in self.prefixes)]

    def encode(self, entities: Sequence[Entity], length: int) -> list[str]:
        """The tags of a sentence of `length` words; `spans` gives the entities back.

        Raises: DataError for entities that overlap, are not sorted, or lie outside the sentence.
        """
        tags = ["O"] * length
        end, type_before = 0, ""
        for entity in entities:
            start, kind = entity.start, entity.type
            if not end <= start < entity.end <= length:
                raise DataError(
                    f"entity {tuple(entity)} overlaps another or lies outside a sentence of "
                    f"{length} words; give entities sorted and apart"
                )
            touches = start > 0 and start == end and kind == type_before
            first = "I" if self.name == "iob1" and not touches else "B"
            end, type_before = entity.end, kind
            tags[start:end] = [f"{first}-{kind}"] + [f"I-{kind}"] * (end - start - 1)
            if self.name == "bioes":
                tags[end - 1] = f"S-{kind}" if end == start + 1 else f"E-{kind}"
        return tags

    def allows(self, before: str, tag: str) -> bool:
        """Whether a tag may follow another; O stands for both ends of a sentence."""
        continues = before[0] in "BI" and before[1:] == tag[1:]
        match self.name:
            case "iob1":
                return tag[0] != "B" or continues
            case "iob2":
                return tag[0] != "I" or continues
        return continues if tag[0] in "IE" else before[0] not in "BI"

    def masks(self, labels: Sequence[str]) -> Masks:
        """`allows` as arrays."""
        return Masks(
            np.array([[self.allows(one, other) for other in labels] for one in labels]),
            np.array([self.allows("O", label) for label in labels]),
            np.array([self.allows(label, "O") for label in labels]),
        )

    def surroundings(self, tags: Sequence[str]) -> tuple[list[str], list[str]]:
        """The tags before and after part of a sentence, where an entity crosses its borders."""
        first, last = tags[0], tags[-1]
        before = [] if self.allows("O", first) else [f"B{first[1:]}"]
        after = [] if self.allows(last, "O") else [f"E{last[1:]}"]
        return before, after

    def fits(self, pairs: Set[tuple[str, str]]) -> bool:
        """Whether all tags that stand beside each other may; O is at both ends of a sentence."""
        tags = {tag for _, tag in pairs}
        return all(_TAG.fullmatch(tag) and tag[0] in f"O{self.prefixes}" for tag in tags) and all(
            self.allows(before, tag) for before, tag in pairs
        )

    def faults(self, tags: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Each word whose tag breaks the rules, and what was expected in its place."""
        before = "O"
        for i, tag in enumerate(tags):
            if not _TAG.fullmatch(tag):
                *others, last = (f"{prefix}-" for prefix in self.prefixes)
                yield i, f"O, or {', '.join(others)} or {last} before a type"
                tag = "O"
            elif tag[0] not in f"O{self.prefixes}":
                yield i, f"B{tag[1:]} or I{tag[1:]}"
            elif not self.allows(before, tag):
                yield i, self._expected(before, tag)
            elif i + 1 == len(tags) and not self.allows(tag, "O"):
                yield i, f"E{tag[1:]} or S{tag[1:]} at the end of a sentence"
            before = tag

    def _expected(self, before: str, tag: str) -> str:
        """What could stand in place of a tag that may not follow another."""
        match self.name:
            case "iob1":
                return f"I{tag[1:]}, as no entity of this type ends just before"
            case "iob2":
                return f"B{tag[1:]} where an entity begins"
        if before[0] in "BI":
            return f"I{before[1:]} or E{before[1:]} after {before}"
        return f"B{tag[1:]} or S{tag[1:]} where an entity begins"


IOB1 = Scheme("iob1", "BI")
"""I- throughout; B- begins an entity directly after another of its type."""
IOB2 = Scheme("iob2", "BI")
"""B- begins each entity, I- goes on."""
BIOES = Scheme("bioes", "BIES")
"""B- I- E- for several words, S- for a single one."""
SCHEMES: dict[str | None, Scheme] = {scheme.name: scheme for scheme in (IOB2, IOB1, BIOES)}


def spans(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in any scheme, also where tags break its rules.

    The lenient reading of conlleval and of seqeval's default: an entity begins at B- or S-, after
    O, E- or S-, and where the type changes.
    """
    entities: list[Entity] = []
    before, type_before = "O", ""
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        kind = kind or "_"
        begins = prefix in ("B", "S") or before in ("O", "E", "S") or kind != type_before
        if prefix != "O" and begins:
            entities.append(Entity(i, i + 1, kind))
        elif prefix != "O":
            entities[-1] = entities[-1]._replace(end=i + 1)
        before, type_before = prefix, kind
    return entities


def neighbors(tags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each two tags of a sentence that stand beside each other, and O at its ends."""
    return zip(("O", *tags), (*tags, "O"), strict=True)


def look_like_tags(values: Sequence[str]) -> bool:
    """Whether most values have the form of tags."""
    # most, not all: one wrong tag must be refused, not make the column one of another kind
    counts = Counter(values)  # few differ
    alike = sum(count for value, count in counts.items() if _LIKE_A_TAG.fullmatch(value))
    return 0 < len(values) <= 2 * alike


_PREFIXED = re.compile(r"(?P<mark>[A-Z])(?:[-_:./](?P<type>.+))?", re.DOTALL | re.IGNORECASE)
_SUFFIXED = re.compile(r"(?P<type>.+)[-_:./](?P<mark>[A-Z])", re.DOTALL | re.IGNORECASE)
_MARKS = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
"""Marks of BILOU, BMES, BMEW, IOE and so on, and the marks of BIOES with the same meaning."""

NO_TYPE = "ENTITY"
"""Type of the entities of a model whose labels have none, such as B, I and O."""


def standard_labels(labels: Sequence[str]) -> list[str] | None:
    """Write the labels of a model as in IOB2 or BIOES.

    Reads BILOU, BMES, BMEW and IOE; marks in lower case; marks after the type (PER-B); `_`, `:`,
    `.` and `/` as separators.

    Returns:
        A label for each label, or None if they mark no entities in one of these ways.
    """
    for form in (_PREFIXED, _SUFFIXED):
        matches = [None if label in ("O", "o") else form.fullmatch(label) for label in labels]
        written = [
            "O"
            if match is None
            else f"{_MARKS.get(match['mark'].upper())}-{match['type'] or NO_TYPE}"
            for match in matches
        ]
        fits = all(m or label in ("O", "o") for m, label in zip(matches, labels, strict=True))
        marks = {tag[0] for tag in written}
        if fits and marks <= set("OBIES") and marks & set("BI") and len({*written}) == len(labels):
            return written
    return None


def scheme_of_labels(labels: Sequence[str]) -> Scheme | None:
    """The scheme of a model's labels by their names; None where they mark no entities."""
    if not all(map(_TAG.fullmatch, labels)):
        return None
    return BIOES if any(label[0] in "ES" for label in labels) else IOB2


def scheme_of(
    sentences: Sequence[Sequence[str]],
    where: Callable[[int, int], str] = lambda sentence, word: (
        f"sentence {sentence + 1}, word {word + 1}"
    ),
) -> Scheme | None:
    """The scheme that tags follow; None where most have no such form, as parts of speech.

    Tags that are all O count as IOB2. `where` names a word by the indices of its sentence and its
    own, for messages.
    Raises: DataError naming the first tag that breaks the scheme with the fewest faults.
    """
    if not look_like_tags([tag for tags in sentences for tag in tags]):
        return None
    pairs = {pair for tags in sentences for pair in neighbors(tags)}
    for scheme in SCHEMES.values():
        if scheme.fits(pairs):
            return scheme
    fewest: list[tuple[int, int, str]] = []
    best = IOB2
    for scheme in SCHEMES.values():
        faults = [
            (sentence, word, expected)
            for sentence, tags in enumerate(sentences)
            for word, expected in scheme.faults(tags)
        ]
        if not fewest or len(faults) < len(fewest):
            best, fewest = scheme, faults
    sentence, word, expected = fewest[0]
    raise DataError(
        f"{where(sentence, word)}: tag {sentences[sentence][word]!r} does not fit "
        f"{best.name.upper()}, which the other tags follow; expected {expected}"
    )
