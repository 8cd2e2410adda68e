"""A word in several texts: how alike its states are there, in every layer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError
from bertkit.pipelines import BYTES_PER_NUMBER, Work
from bertkit.pipelines.frozen_words import FrozenWords
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long
from bertkit.text.word_splitting import find_word

TEXTS, CHARACTERS = 32, 2_000
"""As many texts at most, and so long: all are compared with all, and words with each of theirs."""


class Contexts(msgspec.Struct, frozen=True):
    """Where the word stands in each text, and its states compared. Layer 0 is the embedding."""

    texts: list[str]
    ranges: list[tuple[int, int]]
    cosines: list[list[list[float]]]
    """Of the layer, of one text, of another."""
    maps: list[list[tuple[float, float]]]
    """Of the layer, of the text: its place on the plane on which the states differ most (PCA)."""
    sees: str
    """What of its text a state depends on."""


class ContextsPipeline:
    """A pipeline: a word and texts -> contexts. `name` is the model's, for messages."""

    def __init__(self, name: str, frozen: FrozenWords) -> None:
        self.name, self.frozen = name, frozen
        self.policies: tuple[Long, ...] = (
            ("error",) if frozen.whole_words else ("error", "truncate")
        )

    def prepare(self, items: Sequence[tuple[str, Sequence[str]]], *, long: Long) -> list[Work]:
        """Raises: DataError for a text that is long or without the word, or too few or many."""
        works = []
        for word, texts in items:
            if not 2 <= len(texts) <= TEXTS:
                raise DataError(
                    f"texts: {len(texts)}; a word is compared in 2 to {TEXTS} of them, a line each"
                )
            for text in texts:
                if len(text) > CHARACTERS:
                    raise DataError(
                        f"{text[:40]!r}…: {len(text):,} characters, and {CHARACTERS:,} are the "
                        "most; give the sentences with the word"
                    )
            spans = [find_word(word, text) for text in texts]
            for text, place in zip(texts, spans, strict=True):
                if place is None:
                    raise DataError(
                        f"{word[:60]!r} is not in {text[:60]!r}; write it as it stands there"
                    )
            ranges = [place for place in spans if place is not None]
            features = read_word(self.name, self.frozen, texts, ranges, long=long)
            size = BYTES_PER_NUMBER * (self.frozen.layers + 1) * len(texts) ** 2
            works.append(Work(features, (texts, ranges), answer_bytes=size))
        return works

    def run(self, works: Sequence[Work]) -> list[Contexts]:
        """The word of each compared."""
        return [compared(self.frozen, work.features, *work.item) for work in works]


def read_word(
    name: str,
    frozen: FrozenWords,
    texts: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    *,
    long: Long = "truncate",
) -> list[Feature]:
    """What a model of this name reads of one word in each text.

    Raises: DataError for a word that it does not read, or has no vector of.
    """
    features = frozen.read(texts, ranges, long=long)
    for text, (start, end), feature in zip(texts, ranges, features, strict=True):
        assert feature.token_indices is not None
        if not len(feature.token_indices):
            word = text[start:end][:60]
            raise DataError(f"{name}: no vector of {word!r}; leave it out, or its texts")
    return features


def compared(
    frozen: FrozenWords,
    features: Sequence[Feature],
    texts: Sequence[str],
    ranges: Sequence[tuple[int, int]],
) -> Contexts:
    """The states of the word that was read in each text, every two of them."""
    states = frozen.states(features)
    norms = np.maximum(np.linalg.norm(states, axis=2, keepdims=True), 1e-12)
    units = states / norms
    return Contexts(
        list(texts),
        list(ranges),
        (units @ units.transpose(0, 2, 1)).clip(-1, 1).tolist(),
        [[(float(a), float(b)) for a, b in plane(layer)] for layer in states],
        frozen.sees,
    )


def plane(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows as points on the plane on which they differ most: PCA. Shapes: (S, D) -> (S, 2).

    Each direction is turned so that its largest number is above zero, for the pictures of
    neighboring layers to be alike.
    """
    centered = rows - rows.mean(0)
    left, sizes, _ = np.linalg.svd(centered, full_matrices=False)
    points = np.zeros((len(rows), 2), dtype=np.float32)
    count = min(2, len(sizes))
    points[:, :count] = (left * sizes)[:, :count]
    turn = np.sign(points[np.abs(points).argmax(0), [0, 1]])
    return np.asarray(points * np.where(turn == 0, 1, turn))
