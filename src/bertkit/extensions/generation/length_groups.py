"""Texts in groups by how long they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOST, LEAST = 8, 20
"""Groups, and texts of one."""


class LengthGroup(NamedTuple):
    """Texts of `low` to `high` words, by their places."""

    low: int
    high: int
    places: list[int]

    @property
    def name(self) -> str:
        return f"{self.low}–{self.high}" if self.low < self.high else str(self.low)


def groups_by_length(texts: Sequence[str]) -> list[LengthGroup]:
    """At most `MOST` groups that are equally wide, in words; one of fewer texts than `LEAST` is a
    part of the next, and the last of the one before."""
    lengths = [len(text.split()) for text in texts]
    shortest, longest = min(lengths), max(lengths)
    width = next(w for w in _round() if (longest - 1) // w - (shortest - 1) // w < MOST)
    groups: list[LengthGroup] = []
    low = shortest
    for edge in range((shortest - 1) // width * width + width, longest + width, width):
        high = min(edge, longest)
        places = [n for n, length in enumerate(lengths) if low <= length <= high]
        if len(places) >= LEAST:
            groups.append(LengthGroup(low, high, places))
            low = high + 1
        elif high == longest and groups:
            before = groups.pop()
            groups.append(LengthGroup(before.low, high, sorted([*before.places, *places])))
        elif high == longest:
            groups.append(LengthGroup(low, high, places))
    return groups


def _round() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50 and so on."""
    for power in itertools.count():
        yield from (10**power, 2 * 10**power, 5 * 10**power)
