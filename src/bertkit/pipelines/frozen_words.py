"""States that a frozen model computes for the words of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.engine.engine import Engine
from bertkit.engine.word_states import pieces_of, word_states
from bertkit.nn.precision import Precision
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long, encode
from bertkit.text.tokenizer import Tokenizer


class FrozenWords(Protocol):
    """What has states of words, and of which nothing is learned; layer 0 is its embedding."""

    sees: str
    """What of its text the state of a word depends on."""
    whole_words: bool
    """Whether its input is whole words, and not tokens."""

    layers: int

    def read(
        self, texts: Sequence[str], ranges: Sequence[tuple[int, int]], *, long: Long = "truncate"
    ) -> list[Feature]:
        """What it reads of each text, and at which places one word of it stands.

        A word without a vector has no place. Raises: DataError for a word that the model does not
        read, or a text that is too long, as `long` says.
        """

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        """Those of the word of each, the mean where it has several parts.

        One without a place has no number. Shapes: (layers + 1, S, D).
        """


class FrozenEncoder:
    """A Transformer, which reads pieces of words.

    Raises:
        ConfigError: If the model is not a Transformer.
    """

    whole_words = False

    def __init__(
        self, loaded: Loaded, engine: Engine | Precision, device: str | None = None
    ) -> None:
        _ = loaded.model.transformer
        self.loaded, self.tokenizer, self.length = loaded, loaded.tokenizer, loaded.length
        self.layers = loaded.model.config.layers
        self.engine = (
            engine
            if isinstance(engine, Engine)
            else Engine(loaded.model, precision=engine, device=device)
        )
        self.sees = "what stands before it" if loaded.model.causal else "both sides at once"

    def read(
        self, texts: Sequence[str], ranges: Sequence[tuple[int, int]], *, long: Long = "truncate"
    ) -> list[Feature]:
        tokenizer, length = self.tokenizer, self.length
        before: tuple[int, ...] = ()
        if self.loaded.model.causal:
            texts, ranges = _spaced(tokenizer, texts, ranges)
            before = () if tokenizer.added[0] else tokenizer.ends
        encodings, _ = encode(tokenizer, texts, length=length - len(before), long=long)
        if before:  # the state of a first token is unlike all others
            encodings = [one.behind(before) for one in encodings]
        pieces = [pieces_of(*one) for one in zip(encodings, ranges, texts, strict=True)]
        return [
            Feature(encoding, place, own)
            for place, (encoding, own) in enumerate(zip(encodings, pieces, strict=True))
        ]

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        encodings = [feature.encoding for feature in features]
        return word_states(self.engine, encodings, [places_of(feature) for feature in features])


def _spaced(
    tokenizer: Tokenizer, texts: Sequence[str], ranges: Sequence[tuple[int, int]]
) -> tuple[Sequence[str], Sequence[tuple[int, int]]]:
    """The texts behind a space, where this costs no token: a text's first word then has the pieces
    that it has elsewhere (byte-level BPE).
    """
    alone, spaced = tokenizer.ids(["a", " a"])
    if len(spaced) > len(alone):
        return texts, ranges
    return [f" {text}" for text in texts], [(start + 1, end + 1) for start, end in ranges]


def places_of(feature: Feature) -> NDArray[np.int64]:
    """Return the positions of a feature whose states are used, or its first token."""
    assert feature.token_indices is not None
    return feature.token_indices if len(feature.token_indices) else np.zeros(1, np.int64)
