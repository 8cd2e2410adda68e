"""What heads look at in a text, measured from their weights: a name for each, and where to begin.

Axis letters are those of `batch.py`; here T is the text's tokens, specials included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bertkit.view.page_data import Pattern, Place, Token, Word

MIN_PATTERN_WEIGHT = 0.5
"""A head is named by what takes more than this share of its weight (Clark et al. 2019, section 3.1,
count heads that put more than half on the token before or behind)."""

BROAD_ENTROPY = 0.85
"""Of the entropy that equal weights would have: above it a head looks at everything a little."""

MIN_DISTANCE = 2
"""Words from one to another that does not stand beside it, at least."""


def patterns(
    attention: Tensor,
    tokens: Sequence[Token],
    words: Sequence[Word],
    *,
    causal: bool = False,
    windows: Sequence[int | None] = (),
) -> list[list[Pattern]]:
    """The pattern of each head of each layer on this text. Shapes: attention (layers, H, T, T).

    Counted are the rows of words: special tokens and punctuation do not speak for a head.
    Source: Clark et al. 2019, section 3; the same word, which is a token itself and its other
    places, is ours.
    """
    rest = _delimiters(tokens, words, causal)
    rows = ~rest if not rest.all() else rest
    gap = _gap(len(tokens))
    spelled = _spelled(tokens, words)
    beside = {"previous": gap == -1, "next": gap == 1}
    kinds = {name: (there, rows & (there & rows).any(1)) for name, there in beside.items()}
    kinds["same"] = (spelled[:, None] == spelled) & (spelled >= 0), rows
    kinds["delimiter"] = rest.expand(len(rest), -1), rows
    named = []
    for layer, heads in enumerate(attention):
        weights, window = heads.float().cpu(), windows[layer] if windows else None
        seen = gap <= 0 if causal else torch.ones_like(gap, dtype=torch.bool)
        if window is not None:
            seen = seen & (gap.abs() <= window)
        shares = {name: _share(weights, *both) for name, both in kinds.items()}
        shares["broad"] = _breadth(weights, seen, rows)
        each = zip(*(share.tolist() for share in shares.values()), strict=True)
        named.append([_named(dict(zip(shares, head, strict=True))) for head in each])
    return named


def begin(attention: Tensor, tokens: Sequence[Token], words: Sequence[Word]) -> Place:
    """The layer, head and token at which something is to be seen: where a word takes most from
    another that does not stand beside it, or else from any other token. Shapes: (layers, H, T, T).
    """
    rest, spelled = _delimiters(tokens, words, causal=False), _spelled(tokens, words)
    word = torch.tensor([-1 if token.word is None else token.word for token in tokens])
    far = (word[:, None] - word).abs() >= MIN_DISTANCE
    pairs = far & (spelled[:, None] != spelled) & ~rest[:, None] & ~rest
    if not pairs.any():
        pairs = _gap(len(tokens)) != 0
        if not rest.all():
            pairs &= ~rest[:, None]
    most, best = -1.0, Place(0, 0, 0)
    for layer, heads in enumerate(attention):
        rows = heads.float().cpu().masked_fill(~pairs, -1.0).amax(-1)  # (H, T)
        weight, place = rows.flatten().max(0)
        if weight > most:
            most, best = float(weight), Place(layer, *divmod(int(place), len(tokens)))
    return best


def _gap(count: int) -> Tensor:
    """How far a key stands behind its query. Shapes: (T, T)."""
    place = torch.arange(count)
    return place - place[:, None]


def _delimiters(tokens: Sequence[Token], words: Sequence[Word], causal: bool) -> Tensor:
    """Which tokens are special or punctuation; in a causal model also the first, on which heads
    rest that have nothing to do (Xiao et al. 2024). Shapes: (T,).
    """
    return torch.tensor(
        [
            token.word is None
            or not any(map(str.isalnum, words[token.word].text))
            or (causal and place == 0)
            for place, token in enumerate(tokens)
        ]
    )


def _spelled(tokens: Sequence[Token], words: Sequence[Word]) -> Tensor:
    """A number for each spelling of a word, -1 for special tokens. Shapes: (T,)."""
    numbers: dict[str, int] = {}
    texts = [None if token.word is None else words[token.word].text.casefold() for token in tokens]
    return torch.tensor(
        [-1 if text is None else numbers.setdefault(text, len(numbers)) for text in texts]
    )


def _share(weights: Tensor, there: Tensor, rows: Tensor) -> Tensor:
    """The mean weight on what is there. Shapes: (H, T, T), (T, T), (T,) -> (H,)."""
    if not rows.any():
        return weights.new_zeros(len(weights))
    return (weights * there).sum(-1)[:, rows].mean(-1)


def _breadth(weights: Tensor, seen: Tensor, rows: Tensor) -> Tensor:
    """The mean entropy, as a share of that of equal weights. Shapes: (H, T, T), … -> (H,)."""
    most = seen.sum(-1).float().log()
    rows = rows & (most > 0)  # who sees one token alone has no choice
    if not rows.any():
        return weights.new_zeros(len(weights))
    entropy: Tensor = torch.special.entr(weights).sum(-1)
    return (entropy[:, rows] / most[rows]).mean(-1)


def _named(shares: dict[str, float]) -> Pattern:
    most = max((name for name in shares if name != "broad"), key=shares.__getitem__)
    if shares[most] > MIN_PATTERN_WEIGHT:
        return Pattern(most, shares)
    return Pattern("broad" if shares["broad"] > BROAD_ENTROPY else "mixed", shares)
