"""Data of the page of `bertkit view explain`: the keys of its JSON document.

Axis letters are as in `batch.py`; T is the number of tokens of the text with special tokens.
"""

from __future__ import annotations

import msgspec

from bertkit.pipelines import Candidate
from bertkit.view.arrays import Array


class Shape(msgspec.Struct, frozen=True):
    """Name and sizes of the model; `length` is the maximum number of tokens."""

    name: str
    family: str
    layers: int
    heads: int
    hidden: int
    length: int


class Token(msgspec.Struct, frozen=True):
    """Token of the text. `word` is the index of its word, or None for special tokens.

    Units: start and end in characters of the text or of the pair.
    """

    piece: str
    id: int
    segment: int
    start: int
    end: int
    word: int | None


class Word(msgspec.Struct, frozen=True):
    """Word of the text and its tokens [first, end). `sequence` is 0 in the text, 1 in the pair."""

    text: str
    sequence: int
    first: int
    end: int


class EmbeddingPart(msgspec.Struct, frozen=True):
    """A vector of each token. Names are token, position, segment, sum, and norm (LayerNorm).

    Shapes:
        values: (T, STRIP_VALUES), the first values of each vector.
    """

    name: str
    norms: list[float]
    values: Array


class Embeddings(msgspec.Struct, frozen=True):
    """Embeddings of each token, their sum, and the normalized sum; `width` is their size."""

    width: int
    parts: list[EmbeddingPart]


class Walk(msgspec.Struct, frozen=True):
    """Steps of a layer for each token, with the names of `Block.steps`.

    Shapes:
        heads: (H, T, K), the output of each head.
    """

    heads: Array
    steps: list[EmbeddingPart]


class Repeat(msgspec.Struct, frozen=True):
    """Word that occurs more than once: its first indices in `words`, and cosines per layer."""

    text: str
    words: list[int]
    more: int
    """Number of occurrences that are not compared."""
    cosines: list[list[list[float]]]
    """Cosines of the mean states of the word's tokens, by layer (0 is the embedding), occurrence,
    and other occurrence."""


class Pattern(msgspec.Struct, frozen=True):
    """Attention pattern of a head on this text: previous, next, same, delimiter, broad or mixed.

    `shares` contains the mean weights of the previous token, the next token, the same word (itself
    and other occurrences), and special tokens with punctuation. `broad` is the entropy as a
    fraction of the entropy of equal weights.
    """

    kind: str
    shares: dict[str, float]


class Selection(msgspec.Struct, frozen=True):
    """Query token in a head of a layer; all indices start at 0."""

    layer: int
    head: int
    token: int


class Hidden(msgspec.Struct, frozen=True):
    """Indices of words that are masked together, and candidates for each of their tokens."""

    words: list[int]
    candidates: list[list[list[Candidate]]]


class Source(msgspec.Struct, frozen=True):
    """Location and code of a function: file in the repository, line, and name."""

    path: str
    line: int
    name: str
    code: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Data of the page. Lists of arrays have one array per layer, unless described otherwise."""

    text: str
    pair: str | None
    truncated: bool
    off: list[str]
    """Heads that are switched off, as LAYER.HEAD."""
    off_change: list[list[float]] | None
    """Cosines of the states with the states of the unchanged model, (T,) for the embedding and for
    each layer. None if no head is off."""
    model: Shape
    tokens: list[Token]
    words: list[Word]
    embeddings: Embeddings
    attention: list[Array]
    """Attention weights, (H, T, T) per layer; rows sum to 1."""
    mean: list[Array]
    """Mean over the heads, (T, T) per layer."""
    rollout: list[Array]
    """Rollout from the output of the layer to the tokens, (T, T) per layer."""
    steps: list[Array] | None
    """Queries, keys, and values, (3, H, T, K) per layer; None if they are too large."""
    walk: list[Walk] | None
    """Steps of each layer; None if they are too large."""
    patterns: list[list[Pattern]]
    """Pattern of each head, by layer."""
    begin: Selection
    """Initial selection."""
    rotary: bool
    """Whether queries and keys are rotated by their positions (RoPE)."""
    windows: list[int | None]
    """Number of tokens on each side that a layer attends to; None for all tokens."""
    causal: bool
    """Whether attention is causal."""
    masked: list[list[list[Candidate]]] | None
    """Predictions by word and token, most probable first. The word is masked; a causal model
    predicts from the previous tokens, so the first token has no predictions. None without a
    trained head."""
    hidden: Hidden | None
    """Predictions for words that are masked together, if any."""
    similarity: list[Array]
    """Cosines of the states, (T, T) for the embedding and for each layer."""
    repeats: list[Repeat]
    """Words that occur more than once."""
    sources: dict[str, Source]
    """Functions that compute the parts of the page."""
