"""Hidden states of words in texts, computed by a frozen model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.engine.engine import Engine
from bertkit.engine.word_states import token_indices_of, word_states
from bertkit.nn.precision import Precision
from bertkit.tasks.task import Feature
from bertkit.text.long_texts import Long, encode
from bertkit.text.tokenizer import Tokenizer


class FrozenWords(Protocol):
    """Frozen model that computes hidden states of words. Layer 0 is the embedding layer."""

    sees: str
    """Description of the context that the state of a word depends on."""
    whole_words: bool
    """Whether the model reads complete words instead of tokens."""

    layers: int
    """Number of layers, not counting the embedding layer."""

    def read(
        self, texts: Sequence[str], ranges: Sequence[tuple[int, int]], *, long: Long = "truncate"
    ) -> list[Feature]:
        """Encode texts, and find the tokens of one word of each text.

        Args:
            texts: The texts.
            ranges: Start and end of the word in each text, in characters.
            long: Policy for texts longer than the maximum length.

        Returns:
            The encoded texts. Their `token_indices` are the positions of the word. They are empty
            if the model has no vector for the word.

        Raises:
            DataError: If the model does not support the word, or if a text is too long and the
                policy is `error`.
        """

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        """Compute the hidden states of the word of each text, as the mean over its tokens.

        Args:
            features: Encoded texts.

        Returns:
            The states in each layer. They are NaN for a word without positions.

        Shapes:
            returns: (layers + 1, S, D).
        """


class FrozenEncoder:
    """Frozen Transformer, which reads tokens.

    Args:
        loaded: The model.
        engine: Engine of the model, or the precision of a new engine.
        device: Device of a new engine.

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
        self.sees = "the text before it" if loaded.model.causal else "the text on both sides"

    def read(
        self, texts: Sequence[str], ranges: Sequence[tuple[int, int]], *, long: Long = "truncate"
    ) -> list[Feature]:
        tokenizer, length = self.tokenizer, self.length
        before: tuple[int, ...] = ()
        if self.loaded.model.causal:
            texts, ranges = _prepend_spaces(tokenizer, texts, ranges)
            before = () if tokenizer.added[0] else tokenizer.ends
        encodings, _ = encode(tokenizer, texts, length=length - len(before), long=long)
        # In a causal model, the state of the first token is very different from all other states.
        # A special token is therefore put before the text.
        if before:
            encodings = [encoding.behind(before) for encoding in encodings]
        positions = [token_indices_of(*row) for row in zip(encodings, ranges, texts, strict=True)]
        return [
            Feature(encoding, index, tokens)
            for index, (encoding, tokens) in enumerate(zip(encodings, positions, strict=True))
        ]

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        encodings = [feature.encoding for feature in features]
        return word_states(self.engine, encodings, [positions_of(feature) for feature in features])


def _prepend_spaces(
    tokenizer: Tokenizer, texts: Sequence[str], ranges: Sequence[tuple[int, int]]
) -> tuple[Sequence[str], Sequence[tuple[int, int]]]:
    """Prepend a space to each text, unless the tokenizer makes the space a separate token.

    In byte-level BPE, the first word then has the same tokens as it has inside a text.
    """
    plain, spaced = tokenizer.ids(["a", " a"])
    if len(spaced) > len(plain):
        return texts, ranges
    return [f" {text}" for text in texts], [(start + 1, end + 1) for start, end in ranges]


def positions_of(feature: Feature) -> NDArray[np.int64]:
    """Return the positions of a feature's word, or position 0 if the word has no positions."""
    assert feature.token_indices is not None
    return feature.token_indices if len(feature.token_indices) else np.zeros(1, np.int64)
