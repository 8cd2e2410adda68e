"""Pairs of texts as long as one likes: neighbours joined, and letters to be written backwards."""

from __future__ import annotations

from itertools import cycle
from string import ascii_lowercase as LETTERS

import numpy as np

from bertkit.errors import ConfigError

Texts = tuple[list[str], list[str]]
"""Sources and targets."""

SHORTEST, LEARNED, SCORED = 5, 50_000, 20
"""Letters of the shortest sequence; how many are learned from; how many of each length scored."""

VOCABULARY_SIZE = 2 * len(LETTERS) + 4
"""Of a vocabulary in which each letter, with the space before it, is one piece: beside these the
letters alone and the space; the end, the unknown and the pad."""


def joined(source: list[str], target: list[str], most: int) -> Texts:
    """Neighbours as one: 1, 2 and so on to `most` of them in turn."""
    sizes, place = cycle(range(1, most + 1)), 0
    both: Texts = [], []
    while place < len(source):
        size = next(sizes)
        for side, texts in zip(both, (source, target), strict=True):
            side.append(" ".join(texts[place : place + size]))
        place += size
    return both


def reversals(longest: int) -> dict[str, Texts]:
    """Letters with spaces between them, and the same backwards, each length as often: `train` of at
    most so many letters, and `dev` of up to twice as many.

    Raises: ConfigError where even the shortest are longer.
    """
    if longest < SHORTEST:
        raise ConfigError(f"reverse: {longest}; sequences have {SHORTEST} letters at least")
    learned, scored = range(SHORTEST, longest + 1), range(SHORTEST, 2 * longest + 1)
    return {
        "train": _drawn(LEARNED, learned, seed=0),
        "dev": _drawn(SCORED * len(scored), scored, seed=1),
    }


def _drawn(count: int, lengths: range, *, seed: int) -> Texts:
    draws = np.random.default_rng(seed)
    rows = [
        [LETTERS[letter] for letter in draws.integers(len(LETTERS), size=lengths[n % len(lengths)])]
        for n in range(count)
    ]
    return [" ".join(row) for row in rows], [" ".join(row[::-1]) for row in rows]
