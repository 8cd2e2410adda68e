"""Demonstration of the text corruption that is used to pretrain encoder-decoder models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertkit.data.sentences import CachedTokenizer, split_with_spaces
from bertkit.data.shuffling import Purpose, generator
from bertkit.errors import DataError
from bertkit.extensions.generation.corruption import (
    Corruption,
    CorruptionType,
    Ids,
    get_corruption,
    permute_sentences,
    special_token_ids,
)
from bertkit.text.tokenizer import Tokenizer
from bertkit.view.figures import Figure, Spans
from bertkit.view.token_text import spelled

MAX_TOKENS = 512
"""Maximum number of tokens in a text."""

NAMES: dict[CorruptionType, str] = {
    "spans": "T5: sentinels for spans",
    "infill": "BART: masks for spans",
    "mass": "MASS: a masked span",
    "prefix": "Prefix LM: the first part",
}

SETTINGS: dict[CorruptionType, Corruption] = {
    "spans": Corruption(),
    "infill": Corruption(rate=0.3, permute=True),
    "mass": Corruption(rate=0.5),
    "prefix": Corruption(),
}
"""Settings for each type of corruption, as in the paper that introduced it."""


class CorruptedText(NamedTuple):
    """A text, the encoder input that corruption makes from it, and the decoder target.

    Each list contains tokens, each with the number of its removed span. Spans are counted from 1.
    The number is None for tokens that are not removed.
    """

    text: list[tuple[str, int | None]]
    source: list[tuple[str, int | None]]
    target: list[tuple[str, int | None]]


def corrupt(tokenizer: Tokenizer, text: str, kind: CorruptionType, seed: int) -> CorruptedText:
    """Corrupt a text in the same way as during pretraining.

    Args:
        tokenizer: The tokenizer.
        text: The text to corrupt.
        kind: Type of the corruption.
        seed: Random seed.

    Raises:
        TokenizerError: If the vocabulary lacks the special tokens that the corruption requires.
        DataError: If the text has fewer than two tokens, or more than `MAX_TOKENS`.
    """
    specials, settings = special_token_ids(kind, tokenizer), SETTINGS[kind]
    texts = CachedTokenizer(tokenizer).restore_spaces(split_with_spaces(text), begins=True)
    sentences = [ids for ids in tokenizer.ids(texts) if len(ids)]
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *sentences])
    if len(ids) < 2:
        raise DataError("text: must have at least two tokens; enter a longer text")
    if len(ids) > MAX_TOKENS:
        raise DataError(f"text: has {len(ids):,} tokens; use a text of at most {MAX_TOKENS} tokens")
    starts = np.cumsum([len(sentence) for sentence in sentences])[:-1].tolist()
    # Corrupt the indices of the tokens, so that the source shows which tokens remain.
    indices, special_indices = np.arange(len(ids)), len(ids) + np.arange(len(specials))
    rng = generator(seed, 0, 0, Purpose.MASK)
    source, target = get_corruption(kind, settings, special_indices)(indices, starts, rng)
    order = indices
    # The permutation is the first random number that the corruption uses.
    if settings.permute:
        order = permute_sentences(indices, starts, generator(seed, 0, 0, Purpose.MASK))
    source_spans, removed = _spans(source, order)
    tokens = spelled(tokenizer, np.concatenate([ids, specials]))
    spans = {**removed, **dict(zip(source.tolist(), source_spans, strict=True))}
    return CorruptedText(
        [(tokens[i], removed.get(i)) for i in indices.tolist()],
        [(tokens[i], span) for i, span in zip(source.tolist(), source_spans, strict=True)],
        [(tokens[i], spans.get(i)) for i in target.tolist()],
    )


def _spans(source: Ids, order: Ids) -> tuple[list[int | None], dict[int, int]]:
    """Return the span number of each token in the source, and of each removed token.

    Adjacent special tokens count as one span, because it is unknown which removed tokens each of
    them replaces.

    Args:
        source: Indices of the tokens in the source. Indices that are not in `order` are special
            tokens.
        order: Indices of the tokens in the text, in the order after sentences are shuffled.
    """
    rank = {index: position for position, index in enumerate(order.tolist())}
    source_spans: list[int | None] = []
    removed: dict[int, int] = {}
    end, number, inside = 0, 0, False
    for index in [*source.tolist(), None]:
        remains = index in rank
        if not remains and not inside:
            number += 1
        inside = not remains
        if index is not None:
            source_spans.append(None if remains else number)
        until = rank[index] if remains else len(order) if index is None else end
        removed |= dict.fromkeys(order[end:until].tolist(), number)
        end = until + remains
    return source_spans, removed


def corruption_figures(corrupted: CorruptedText) -> list[Figure]:
    """Return figures of the text, the encoder input, and the decoder target.

    Each span has its own color.
    """
    parts: Sequence[tuple[str, str, list[tuple[str, int | None]]]] = (
        ("Text", "Removed spans are marked and numbered.", corrupted.text),
        ("Encoder input", "Each special token has the number of its span.", corrupted.source),
        ("Decoder target", "The decoder learns to generate these tokens.", corrupted.target),
    )
    return [Figure(name, caption, [Spans(tokens)]) for name, caption, tokens in parts]
