"""What a page shows, as one document: its keys, and what they mean.

Axis letters are those of `batch.py`; here T is the text's tokens, specials included.
"""

from __future__ import annotations

import msgspec

from bertkit.pipelines import Candidate
from bertkit.view.arrays import Array


class Shape(msgspec.Struct, frozen=True):
    """The model in numbers; `length` is the most tokens it reads."""

    name: str
    family: str
    layers: int
    heads: int
    hidden: int
    length: int


class Token(msgspec.Struct, frozen=True):
    """One piece of the text, or a special token, whose `word` is None.

    Units: start and end in characters of the text or of the pair.
    """

    piece: str
    id: int
    segment: int
    start: int
    end: int
    word: int | None


class Word(msgspec.Struct, frozen=True):
    """A word as the text has it, and its tokens [first, end); `sequence` 1 is the pair."""

    text: str
    sequence: int
    first: int
    end: int


class EmbeddingPart(msgspec.Struct, frozen=True):
    """One vector of every token; of an embedding token, position, segment, sum, or norm, which is
    after LayerNorm.

    Shapes: values (T, STRIP), the first numbers of each.
    """

    name: str
    norms: list[float]
    values: Array


class Embeddings(msgspec.Struct, frozen=True):
    """What is added up for each token, and what comes of it; `width` numbers each."""

    width: int
    parts: list[EmbeddingPart]


class Walk(msgspec.Struct, frozen=True):
    """What a layer does with each token's state, step by step, as `Block.steps` names it.

    Shapes: heads (H, T, K), what each head takes from the values.
    """

    heads: Array
    steps: list[EmbeddingPart]


class Repeat(msgspec.Struct, frozen=True):
    """A word that recurs: its first places in `words`, and how alike they are at each layer."""

    text: str
    words: list[int]
    more: int
    """Places that are not compared."""
    cosines: list[list[list[float]]]
    """Of the layer (0 is the embedding), of one place, of another; mean states of the pieces."""


class Pattern(msgspec.Struct, frozen=True):
    """What a head looks at in this text: previous, next, same, delimiter, broad or mixed.

    `shares` are of its weight: on the token before, the one behind, the same word here and
    elsewhere, and special tokens and punctuation; `broad` is its entropy, of 1 with equal weights.
    """

    kind: str
    shares: dict[str, float]


class Place(msgspec.Struct, frozen=True):
    """A token that looks, in a head of a layer, all from 0."""

    layer: int
    head: int
    token: int


class Hidden(msgspec.Struct, frozen=True):
    """Words that are masked together, by their places, and candidates for each piece of each."""

    words: list[int]
    candidates: list[list[list[Candidate]]]


class Source(msgspec.Struct, frozen=True):
    """Where something is computed, a file of the repository, a line, a name; and the code there."""

    path: str
    line: int
    name: str
    code: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page shows. Lists of arrays have one for each layer."""

    text: str
    pair: str | None
    truncated: bool
    off: list[str]
    """Heads that are switched off, as LAYER.HEAD."""
    off_change: list[list[float]] | None
    """(T) of the embedding, then of each layer: cosines of the states with those of the whole
    model; None where no head is off."""
    model: Shape
    tokens: list[Token]
    words: list[Word]
    embeddings: Embeddings
    attention: list[Array]
    """(H, T, T) a layer, the rows sum to one."""
    mean: list[Array]
    """(T, T) a layer: over its heads."""
    rollout: list[Array]
    """(T, T) a layer: from its output down to the pieces."""
    steps: list[Array] | None
    """(3, H, T, K) a layer: queries, keys and values; None where they would be too many."""
    walk: list[Walk] | None
    """None where it would be too much."""
    patterns: list[list[Pattern]]
    """Of each layer, of each head."""
    begin: Place
    """Where something is to be seen."""
    rotary: bool
    """Whether queries and keys are turned by their positions (RoPE)."""
    windows: list[int | None]
    """How many tokens to each side a layer sees; None is all."""
    causal: bool
    """Whether no token sees those behind it."""
    masked: list[list[list[Candidate]]] | None
    """Of the word, of its piece, the likeliest first: with the word masked, or in a causal model
    behind the tokens before the piece, of which the first has none. None without a trained head."""
    hidden: Hidden | None
    """Words that were masked together, if some were."""
    similarity: list[Array]
    """(T, T) of the embedding, then of each layer: cosines of the states."""
    repeats: list[Repeat]
    sources: dict[str, Source]
