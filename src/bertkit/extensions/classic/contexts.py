"""Comparison of a word's states in several texts, in every layer of a model."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError
from bertkit.extensions.classic.word_pairs import find_word
from bertkit.pipelines import BYTES_PER_NUMBER, Work
from bertkit.pipelines.frozen_words import FrozenWords
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long

TEXTS, CHARACTERS = 32, 2_000
"""Maximum number of texts, and maximum number of characters in a text."""


class Contexts(msgspec.Struct, frozen=True):
    """Similarities of a word's states in several texts.

    Layer 0 is the embedding layer.
    """

    texts: list[str]
    ranges: list[tuple[int, int]]
    """Range of characters of the word in each text."""
    cosines: list[list[list[float]]]
    """Cosine similarities, indexed by layer, text, and other text."""
    maps: list[list[tuple[float, float]]]
    """Coordinates of the states in their first two principal components (PCA), indexed by layer and
    text."""
    sees: str
    """Description of the part of the text that a state depends on."""


class ContextsPipeline:
    """Pipeline that compares the states of a word in several texts.

    Args:
        name: Name of the model, for error messages.
        frozen: The model.
    """

    def __init__(self, name: str, frozen: FrozenWords) -> None:
        self.name, self.frozen = name, frozen
        self.policies: tuple[Long, ...] = (
            ("error",) if frozen.whole_words else ("error", "truncate")
        )

    def prepare(self, items: Sequence[tuple[str, Sequence[str]]], *, long: Long) -> list[Work]:
        """Encode words together with the texts that contain them.

        Raises:
            DataError: If there are too few or too many texts, or if a text is too long or does not
                contain the word.
        """
        works = []
        for word, texts in items:
            if not 2 <= len(texts) <= TEXTS:
                raise DataError(f"texts: enter 2 to {TEXTS} lines with the word, got {len(texts)}")
            for text in texts:
                if len(text) > CHARACTERS:
                    raise DataError(
                        f"{text[:40]!r}…: the text has {len(text):,} characters, more than "
                        f"{CHARACTERS:,}; use only the sentence that contains the word"
                    )
            spans = [find_word(word, text) for text in texts]
            for text, span in zip(texts, spans, strict=True):
                if span is None:
                    raise DataError(
                        f"{text[:60]!r}: does not contain {word[:60]!r}; use a text that does"
                    )
            ranges = [span for span in spans if span is not None]
            features = encode_word(self.name, self.frozen, texts, ranges, long=long)
            size = BYTES_PER_NUMBER * (self.frozen.layers + 1) * len(texts) ** 2
            works.append(Work(features, (texts, ranges), answer_bytes=size))
        return works

    def run(self, works: Sequence[Work]) -> list[Contexts]:
        """Compare the states of each word."""
        return [compare(self.frozen, work.features, *work.item) for work in works]


def encode_word(
    name: str,
    frozen: FrozenWords,
    texts: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    *,
    long: Long = "truncate",
) -> list[Feature]:
    """Encode several texts, each with the position of one word.

    Args:
        name: Name of the model, for error messages.
        frozen: The model.
        texts: The texts.
        ranges: Range of characters of the word in each text.
        long: Whether to truncate texts that are too long, or raise an error.

    Raises:
        DataError: If truncation removes a word, or a word has no vector.
    """
    features = frozen.read(texts, ranges, long=long)
    for text, (start, end), feature in zip(texts, ranges, features, strict=True):
        assert feature.token_indices is not None
        if not len(feature.token_indices):
            word = text[start:end][:60]
            raise DataError(f"{name}: no vector for {word!r}; use another word or other texts")
    return features


def compare(
    frozen: FrozenWords,
    features: Sequence[Feature],
    texts: Sequence[str],
    ranges: Sequence[tuple[int, int]],
) -> Contexts:
    """Compare the states of the word in every two texts.

    Args:
        frozen: The model.
        features: The encoded texts; see `encode_word`.
        texts: The texts.
        ranges: Range of characters of the word in each text.
    """
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
    """Project rows onto their first two principal components (PCA).

    The sign of each component is chosen so that its value with the largest magnitude is positive.
    This keeps the pictures of adjacent layers similar.

    Shapes:
        rows: (S, D); returns (S, 2).
    """
    centered = rows - rows.mean(0)
    left, sizes, _ = np.linalg.svd(centered, full_matrices=False)
    points = np.zeros((len(rows), 2), dtype=np.float32)
    count = min(2, len(sizes))
    points[:, :count] = (left * sizes)[:, :count]
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])
    return np.asarray(points * np.where(signs == 0, 1, signs))
