"""Data of the page of `bertkit view explain`. The page contains the data as a JSON document.

Axis letters are as in `batch.py`. T is the number of tokens of the text, including special tokens.
"""

from __future__ import annotations

import msgspec

from bertkit.pipelines import Candidate
from bertkit.view.arrays import Array


class Shape(msgspec.Struct, frozen=True):
    """Name and sizes of the model. `length` is the maximum number of tokens of a text."""

    name: str
    family: str
    layers: int
    heads: int
    hidden: int
    length: int


class Token(msgspec.Struct, frozen=True):
    """Token of the text. `word` is the index of its word, or None if it is a special token.

    Units: `start` and `end` count the characters of the text or of the second text.
    """

    piece: str
    id: int
    segment: int
    start: int
    end: int
    word: int | None


class Word(msgspec.Struct, frozen=True):
    """Word, whose tokens have the indices [first, end).

    `sequence` is 0 if the word is in the text, and 1 if it is in the second text.
    """

    text: str
    sequence: int
    first: int
    end: int


class EmbeddingPart(msgspec.Struct, frozen=True):
    """One vector for each token, such as its position embedding.

    In `Embeddings`, the names are token, position, segment, sum, and norm (after LayerNorm).

    Shapes:
        values: (T, STRIP_VALUES), the first values of each vector.
    """

    name: str
    norms: list[float]
    values: Array


class Embeddings(msgspec.Struct, frozen=True):
    """Embeddings of each token, their sum, and the normalized sum. `width` is their size."""

    width: int
    parts: list[EmbeddingPart]


class Walk(msgspec.Struct, frozen=True):
    """Steps by which a layer computes the state of each token. Their names are as in `Block.steps`.

    Shapes:
        heads: (H, T, K), the output of each head.
    """

    heads: Array
    steps: list[EmbeddingPart]


class Repeat(msgspec.Struct, frozen=True):
    """Word that occurs more than once, with the cosines of its occurrences in each layer.

    `words` contains the indices of the first occurrences in `Explanation.words`.
    """

    text: str
    words: list[int]
    more: int
    """Number of occurrences that are not compared."""
    cosines: list[list[list[float]]]
    """Cosine of two occurrences, which are represented by the mean state of their tokens. The
    indices are the layer (0 is the embedding), the first, and the second occurrence."""


class Pattern(msgspec.Struct, frozen=True):
    """Attention pattern of a head for this text: previous, next, same, delimiter, broad or mixed.

    `shares` contains the mean attention weight of the previous token, of the next token, of the
    same word (itself and its other occurrences), and of special tokens and punctuation. The share
    `broad` is the entropy of the weights, divided by the entropy of equal weights.
    """

    kind: str
    shares: dict[str, float]


class Selection(msgspec.Struct, frozen=True):
    """Selected layer, head, and query token. All indices start at 0."""

    layer: int
    head: int
    token: int


class Hidden(msgspec.Struct, frozen=True):
    """Indices of the words that are masked together, and candidates for each of their tokens."""

    words: list[int]
    candidates: list[list[list[Candidate]]]


class Source(msgspec.Struct, frozen=True):
    """Location (file in the repository, line, and name) and code of a function."""

    path: str
    line: int
    name: str
    code: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Data of the page. Unless described otherwise, a list of arrays has one array per layer."""

    text: str
    pair: str | None
    truncated: bool
    off: list[str]
    """Heads that are switched off, as LAYER.HEAD."""
    off_change: list[list[float]] | None
    """Cosines of the states with the states of the unchanged model: T values for the embedding and
    for each layer. None if no head is switched off."""
    model: Shape
    tokens: list[Token]
    words: list[Word]
    embeddings: Embeddings
    attention: list[Array]
    """Attention weights of each layer, of shape (H, T, T). Each row sums to 1."""
    mean: list[Array]
    """Mean of the attention weights over the heads of each layer, of shape (T, T)."""
    rollout: list[Array]
    """Attention rollout from the output of each layer to the input tokens, of shape (T, T)."""
    steps: list[Array] | None
    """Queries, keys, and values of each layer, of shape (3, H, T, K). None if they are too large,
    or if other terms are added to the products of queries and keys."""
    walk: list[Walk] | None
    """Steps of each layer. None if they are too large, if `steps` is None, or if the model has a
    convolution."""
    patterns: list[list[Pattern]]
    """Pattern of each head, by layer."""
    begin: Selection
    """What the page selects first."""
    rotary: bool
    """Whether queries and keys are rotated by their positions (RoPE)."""
    windows: list[int | None]
    """Number of tokens on each side to which a layer attends, or None if it attends to all."""
    causal: bool
    """Whether attention is causal."""
    masked: list[list[list[Candidate]]] | None
    """Predictions for each token of each word, the most probable first. The word is masked. A
    causal model predicts from the previous tokens instead, so the first token has no predictions.
    None if the model has no trained head."""
    hidden: Hidden | None
    """Predictions for words that are masked together, if any."""
    similarity: list[Array]
    """Cosines of all pairs of states, of shape (T, T), for the embedding and for each layer."""
    repeats: list[Repeat]
    """Words that occur more than once."""
    sources: dict[str, Source]
    """Functions that compute the parts of the page."""
