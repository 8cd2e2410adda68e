"""Groups of texts with similar numbers of words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_GROUPS = 8
"""Maximum number of groups."""

MIN_TEXTS = 20
"""Minimum number of texts per group."""


class LengthGroup(NamedTuple):
    """Group of the texts that have `low` to `high` words."""

    low: int
    high: int
    indices: list[int]

    @property
    def name(self) -> str:
        """Range of the number of words, such as `6-10`."""
        return f"{self.low}-{self.high}" if self.low < self.high else str(self.low)


def groups_by_length(texts: Sequence[str]) -> list[LengthGroup]:
    """Group texts by their number of words.

    The ranges have equal widths, for example 1-10, 11-20, and so on. A range with fewer than
    `MIN_TEXTS` texts is merged with the next range. If the last range has too few texts, it is
    merged with the previous one.

    Args:
        texts: At least one text.

    Returns:
        Up to `MAX_GROUPS` groups, in order of increasing length.
    """
    lengths = [len(text.split()) for text in texts]
    shortest, longest = min(lengths), max(lengths)
    width = next(w for w in _widths() if (longest - 1) // w - (shortest - 1) // w < MAX_GROUPS)
    groups: list[LengthGroup] = []
    low = shortest
    for edge in range((shortest - 1) // width * width + width, longest + width, width):
        high = min(edge, longest)
        indices = [n for n, length in enumerate(lengths) if low <= length <= high]
        if len(indices) >= MIN_TEXTS:
            groups.append(LengthGroup(low, high, indices))
            low = high + 1
        elif high == longest and groups:
            previous = groups.pop()
            groups.append(LengthGroup(previous.low, high, sorted([*previous.indices, *indices])))
        elif high == longest:
            groups.append(LengthGroup(low, high, indices))
    return groups


def _widths() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50, and so on."""
    for power in itertools.count():
        yield from (10**power, 2 * 10**power, 5 * 10**power)
