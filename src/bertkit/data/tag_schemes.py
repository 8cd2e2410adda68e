"""Tagging schemes, which define how the tags of words mark entities (IOB1, IOB2, BIOES)."""

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
    """Entity: the words of a sentence from `start` to `end` (exclusive), and the entity type."""

    start: int
    end: int
    type: str


class Masks(NamedTuple):
    """Arrays that show which labels may follow each other, begin a sentence, and end a sentence.

    Shapes:
        allowed: (L, L), indexed by a label and the label after it.
        starts, ends: (L,).
    """

    allowed: NDArray[np.bool_]
    starts: NDArray[np.bool_]
    ends: NDArray[np.bool_]


_TAG = re.compile(r"O|[BIES]-.+", re.DOTALL)
_LIKE_A_TAG = re.compile(r"O|[BIES]-.*", re.DOTALL)


@dataclass(frozen=True)
class Scheme:
    """Tagging scheme: the rules by which tags mark entities.

    Sources: Ramshaw & Marcus 1995; Ratinov & Roth 2009.
    """

    name: Literal["iob1", "iob2", "bioes"]
    prefixes: str
    """Prefixes that tags of entities can have, in the order in which `labels` lists them."""

    def labels(self, types: Sequence[str]) -> list[str]:
        """Return all tags for the given entity types: O, followed by the tags of each type."""
        return ["O", *(f"{prefix}-{kind}" for kind in types for prefix in self.prefixes)]

    def encode(self, entities: Sequence[Entity], length: int) -> list[str]:
        """Convert the entities of a sentence to tags. `spans` is the inverse function.

        Args:
            entities: Entities, which must be sorted and must not overlap.
            length: Number of words in the sentence.

        Raises:
            DataError: If entities overlap, are not sorted, or are outside the sentence.
        """
        tags = ["O"] * length
        end, type_before = 0, ""
        for entity in entities:
            start, kind = entity.start, entity.type
            if not end <= start < entity.end <= length:
                raise DataError(
                    f"entity {tuple(entity)} overlaps another entity or is outside the sentence "
                    f"of {length} words; use sorted entities without overlaps"
                )
            touches = start > 0 and start == end and kind == type_before
            first = "I" if self.name == "iob1" and not touches else "B"
            end, type_before = entity.end, kind
            tags[start:end] = [f"{first}-{kind}"] + [f"I-{kind}"] * (end - start - 1)
            if self.name == "bioes":
                tags[end - 1] = f"S-{kind}" if end == start + 1 else f"E-{kind}"
        return tags

    def allows(self, before: str, tag: str) -> bool:
        """Return whether a tag may follow the tag `before`. O represents the ends of a sentence."""
        continues = before[0] in "BI" and before[1:] == tag[1:]
        match self.name:
            case "iob1":
                return tag[0] != "B" or continues
            case "iob2":
                return tag[0] != "I" or continues
        return continues if tag[0] in "IE" else before[0] not in "BI"

    def masks(self, labels: Sequence[str]) -> Masks:
        """Return the results of `allows` for all pairs of labels, as arrays."""
        return Masks(
            np.array([[self.allows(before, tag) for tag in labels] for before in labels]),
            np.array([self.allows("O", label) for label in labels]),
            np.array([self.allows(label, "O") for label in labels]),
        )

    def surroundings(self, tags: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return tags that complete the entities at the start and the end of a part of a sentence.

        Both lists are empty if no entity extends beyond the part.
        """
        first, last = tags[0], tags[-1]
        before = [] if self.allows("O", first) else [f"B{first[1:]}"]
        after = [] if self.allows(last, "O") else [f"E{last[1:]}"]
        return before, after

    def fits(self, pairs: Set[tuple[str, str]]) -> bool:
        """Return whether all pairs of adjacent tags are allowed. O represents a sentence's ends."""
        tags = {tag for _, tag in pairs}
        return all(_TAG.fullmatch(tag) and tag[0] in f"O{self.prefixes}" for tag in tags) and all(
            self.allows(before, tag) for before, tag in pairs
        )

    def faults(self, tags: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Yield the index of each word whose tag violates the rules, and the expected tags."""
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
        """Describe the tags that are expected after `before`, instead of an invalid tag."""
        match self.name:
            case "iob1":
                return f"I{tag[1:]}, because the previous word does not end such an entity"
            case "iob2":
                return f"B{tag[1:]} at the beginning of an entity"
        if before[0] in "BI":
            return f"I{before[1:]} or E{before[1:]} after {before}"
        return f"B{tag[1:]} or S{tag[1:]} at the beginning of an entity"


IOB1 = Scheme("iob1", "BI")
"""Scheme in which I- marks the words of entities. B- marks the first word of an entity only if it
directly follows another entity of the same type."""
IOB2 = Scheme("iob2", "BI")
"""Scheme in which B- marks the first word of an entity, and I- marks its other words."""
BIOES = Scheme("bioes", "BIES")
"""Scheme in which B-, I- and E- mark the first, inner, and last words of an entity. S- marks an
entity of one word."""
SCHEMES: dict[str | None, Scheme] = {scheme.name: scheme for scheme in (IOB2, IOB1, BIOES)}


def spans(tags: Sequence[str]) -> list[Entity]:
    """Convert the tags of a sentence to entities.

    The tags can be in any scheme, and can also violate its rules. As in conlleval and the default
    mode of seqeval, an entity begins at a tag B- or S-, at any tag after O, E- or S-, and when the
    type changes.
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
    """Yield the pairs of adjacent tags of a sentence, with O added at both ends."""
    return zip(("O", *tags), (*tags, "O"), strict=True)


def look_like_tags(values: Sequence[str]) -> bool:
    """Return whether at least half of the values have the form of entity tags."""
    # Not all values must match, so that a single invalid tag raises an error later. Otherwise, the
    # column would be treated as a column without tags.
    counts = Counter(values)
    matches = sum(count for value, count in counts.items() if _LIKE_A_TAG.fullmatch(value))
    return 0 < len(values) <= 2 * matches


_PREFIXED = re.compile(r"(?P<mark>[A-Z])(?:[-_:./](?P<type>.+))?", re.DOTALL | re.IGNORECASE)
_SUFFIXED = re.compile(r"(?P<type>.+)[-_:./](?P<mark>[A-Z])", re.DOTALL | re.IGNORECASE)
_MARKS = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
"""Prefixes of BILOU, BMES, BMEW, IOE and other schemes, with the equivalent prefixes of BIOES."""

NO_TYPE = "ENTITY"
"""Entity type that is used if the labels of a model have no types, such as B, I and O."""


def standard_labels(labels: Sequence[str]) -> list[str] | None:
    """Convert the labels of a model to IOB2 or BIOES.

    The labels can be in BILOU, BMES, BMEW or IOE, have prefixes in lower case, suffixes instead of
    prefixes (PER-B), or the separators `_`, `:`, `.` or `/`.

    Args:
        labels: The labels of the model.

    Returns:
        The converted labels, or None if the labels are not entity tags in one of these schemes.
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
    """Return the scheme of a model's labels, or None if they are not entity tags."""
    if not all(map(_TAG.fullmatch, labels)):
        return None
    return BIOES if any(label[0] in "ES" for label in labels) else IOB2


def scheme_of(
    sentences: Sequence[Sequence[str]],
    locate: Callable[[int, int], str] = lambda sentence, word: (
        f"sentence {sentence + 1}, word {word + 1}"
    ),
) -> Scheme | None:
    """Determine the scheme of tags.

    If most tags are not entity tags, but for example part-of-speech tags, the result is None. If
    all tags are O, the result is IOB2.

    Args:
        sentences: The tags of each sentence.
        locate: Function that takes the indices of a sentence and a word, and returns the location
            of the word for error messages.

    Raises:
        DataError: If the tags violate the rules of every scheme. The message names the first error
            in the scheme with the fewest errors.
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
        f"{locate(sentence, word)}: tag {sentences[sentence][word]!r} is not valid in "
        f"{best.name.upper()}, the scheme of the other tags; expected {expected}"
    )
