"""Attention patterns of heads, which are measured from the attention weights for a text.

Axis letters are as in `batch.py`. T is the number of tokens of the text, including special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bertkit.view.page_data import Pattern, Selection, Token, Word

MIN_PATTERN_WEIGHT = 0.5
"""A head has a pattern if the pattern receives more than this fraction of its weights. Clark et al.
2019, section 3.1, use the same fraction for attention to the previous or next token."""

BROAD_ENTROPY = 0.85
"""A head is broad if the entropy of its weights exceeds this fraction of the entropy of equal
weights."""

MIN_DISTANCE = 2
"""Minimum distance between two words that count as not adjacent."""


def patterns(
    attention: Tensor,
    tokens: Sequence[Token],
    words: Sequence[Word],
    *,
    causal: bool = False,
    windows: Sequence[int | None] = (),
) -> list[list[Pattern]]:
    """Return the pattern of each head of each layer for a text.

    Only the attention from words is measured. The rows of special tokens and punctuation are
    ignored.

    Args:
        attention: The attention weights.
        tokens: The tokens.
        words: The words.
        causal: Whether attention is causal.
        windows: Local attention window of each layer, or None if the attention of the layer is
            global.

    Shapes:
        attention: (layers, H, T, T).

    Source:
        Clark et al. 2019, section 3. The pattern "same" is an addition of bertkit. It means
        attention to the word itself and its other occurrences.
    """
    is_delimiter = _delimiters(tokens, words, causal)
    rows = ~is_delimiter if not is_delimiter.all() else is_delimiter
    offset = _offsets(len(tokens))
    spelling = _number_spellings(tokens, words)
    adjacent = {"previous": offset == -1, "next": offset == 1}
    masks = {name: (mask, rows & (mask & rows).any(1)) for name, mask in adjacent.items()}
    masks["same"] = (spelling[:, None] == spelling) & (spelling >= 0), rows
    masks["delimiter"] = is_delimiter.expand(len(is_delimiter), -1), rows
    layers = []
    for layer, heads in enumerate(attention):
        weights, window = heads.float().cpu(), windows[layer] if windows else None
        visible = offset <= 0 if causal else torch.ones_like(offset, dtype=torch.bool)
        if window is not None:
            visible = visible & (offset.abs() <= window)
        fractions = {name: _mean_weight(weights, *mask) for name, mask in masks.items()}
        fractions["broad"] = _relative_entropy(weights, visible, rows)
        columns = zip(*(fraction.tolist() for fraction in fractions.values()), strict=True)
        layers.append([_classify(dict(zip(fractions, head, strict=True))) for head in columns])
    return layers


def begin(attention: Tensor, tokens: Sequence[Token], words: Sequence[Word]) -> Selection:
    """Find the strongest attention between words that are not adjacent, to select it first.

    If there are no such words, find the strongest attention to any other token.

    Args:
        attention: The attention weights.
        tokens: The tokens.
        words: The words.

    Shapes:
        attention: (layers, H, T, T).
    """
    is_delimiter = _delimiters(tokens, words, causal=False)
    spelling = _number_spellings(tokens, words)
    word = torch.tensor([-1 if token.word is None else token.word for token in tokens])
    is_far = (word[:, None] - word).abs() >= MIN_DISTANCE
    pairs = is_far & (spelling[:, None] != spelling) & ~is_delimiter[:, None] & ~is_delimiter
    if not pairs.any():
        pairs = _offsets(len(tokens)) != 0
        if not is_delimiter.all():
            pairs &= ~is_delimiter[:, None]
    most, best = -1.0, Selection(0, 0, 0)
    for layer, heads in enumerate(attention):
        rows = heads.float().cpu().masked_fill(~pairs, -1.0).amax(-1)  # (H, T)
        weight, index = rows.flatten().max(0)
        if weight > most:
            most, best = float(weight), Selection(layer, *divmod(int(index), len(tokens)))
    return best


def _offsets(count: int) -> Tensor:
    """Return the position of each key minus the position of its query. Shapes: (T, T)."""
    position = torch.arange(count)
    return position - position[:, None]


def _delimiters(tokens: Sequence[Token], words: Sequence[Word], causal: bool) -> Tensor:
    """Return whether each token is a special token or punctuation. Shapes: returns (T,).

    In a causal model, the first token also counts, because it is an attention sink (Xiao et al.
    2024).
    """
    return torch.tensor(
        [
            token.word is None
            or not any(map(str.isalnum, words[token.word].text))
            or (causal and index == 0)
            for index, token in enumerate(tokens)
        ]
    )


def _number_spellings(tokens: Sequence[Token], words: Sequence[Word]) -> Tensor:
    """Return a number for each token, which is equal for tokens of equal words.

    The number of special tokens is -1.

    Shapes:
        Returns (T,).
    """
    numbers: dict[str, int] = {}
    texts = [None if token.word is None else words[token.word].text.casefold() for token in tokens]
    return torch.tensor(
        [-1 if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    )


def _mean_weight(weights: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
    """Return, for each head, the weight of the tokens in a mask, averaged over the given rows.

    Shapes:
        weights: (H, T, T); mask: (T, T); rows: (T,); returns (H,).
    """
    if not rows.any():
        return weights.new_zeros(len(weights))
    return (weights * mask).sum(-1)[:, rows].mean(-1)


def _relative_entropy(weights: Tensor, visible: Tensor, rows: Tensor) -> Tensor:
    """Return, for each head, the mean entropy of its rows, divided by that of equal weights.

    Shapes:
        weights: (H, T, T); visible: (T, T); rows: (T,); returns (H,).
    """
    highest = visible.sum(-1).float().log()
    # The entropy of a row with one visible token is always 0.
    rows = rows & (highest > 0)
    if not rows.any():
        return weights.new_zeros(len(weights))
    entropy: Tensor = torch.special.entr(weights).sum(-1)
    return (entropy[:, rows] / highest[rows]).mean(-1)


def _classify(shares: dict[str, float]) -> Pattern:
    most = max((name for name in shares if name != "broad"), key=shares.__getitem__)
    if shares[most] > MIN_PATTERN_WEIGHT:
        return Pattern(most, shares)
    return Pattern("broad" if shares["broad"] > BROAD_ENTROPY else "mixed", shares)
