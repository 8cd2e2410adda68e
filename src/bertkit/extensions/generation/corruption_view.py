"""A text of one's own, damaged as a model would read it in pretraining: what goes, what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertkit.data.sentences import CachedTokenizer, placed
from bertkit.data.shuffling import Purpose, generator
from bertkit.errors import DataError
from bertkit.extensions.generation.corruption import (
    Corruption,
    Damage,
    Ids,
    damager,
    marks_of,
    permuted,
)
from bertkit.text.tokenizer import Tokenizer
from bertkit.view.figures import Figure, Spans
from bertkit.view.token_text import spelled

MAX_TOKENS = 512
"""Tokens of a text at most."""

NAMES: dict[Damage, str] = {
    "spans": "T5: sentinels for spans",
    "infill": "BART: masks for spans",
    "mass": "MASS: a masked stretch",
    "prefix": "Prefix: the first part",
}

SETTINGS: dict[Damage, Corruption] = {
    "spans": Corruption(),
    "infill": Corruption(rate=0.3, permute=True),
    "mass": Corruption(rate=0.5),
    "prefix": Corruption(),
}
"""As published."""


class Damaged(NamedTuple):
    """A text, what an encoder reads of it, and what a decoder is to write.

    Each is a list of tokens with the number of their span from 1, None for what stays.
    """

    text: list[tuple[str, int | None]]
    source: list[tuple[str, int | None]]
    target: list[tuple[str, int | None]]


def damaged(tokenizer: Tokenizer, text: str, damage: Damage, seed: int) -> Damaged:
    """What `generation/corruption.py` makes of a text.

    Raises: TokenizerError for a vocabulary without what stands for a span; DataError for a text of
    fewer than two tokens, or more than `MAX_TOKENS`.
    """
    marks, settings = marks_of(damage, tokenizer), SETTINGS[damage]
    whole = CachedTokenizer(tokenizer).spaced(placed(text), begins=True)
    sentences = [ids for ids in tokenizer.ids(whole) if len(ids)]
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *sentences])
    if len(ids) < 2:
        raise DataError("text: fewer than two tokens, of which none can be taken; write more")
    if len(ids) > MAX_TOKENS:
        raise DataError(f"text: {len(ids):,} tokens, and {MAX_TOKENS} are the most; shorten it")
    starts = np.cumsum([len(one) for one in sentences])[:-1].tolist()
    # tokens by their places, so that the source says which of them are left
    places, stand_ins = np.arange(len(ids)), len(ids) + np.arange(len(marks))
    rng = generator(seed, 0, 0, Purpose.MASK)
    source, target = damager(damage, settings, stand_ins)(places, starts, rng)
    order = places
    if settings.permute:  # its first draw
        order = permuted(places, starts, generator(seed, 0, 0, Purpose.MASK))
    of_source, of_text = _spans(source, order)
    pieces = spelled(tokenizer, np.concatenate([ids, marks]))
    named = {**of_text, **dict(zip(source.tolist(), of_source, strict=True))}
    return Damaged(
        [(pieces[place], of_text.get(place)) for place in places.tolist()],
        [(pieces[p], span) for p, span in zip(source.tolist(), of_source, strict=True)],
        [(pieces[p], named.get(p)) for p in target.tolist()],
    )


def _spans(source: Ids, order: Ids) -> tuple[list[int | None], dict[int, int]]:
    """The number of the span of each token of the source, and of each place that is gone.

    Marks side by side are one span: nothing says which of the tokens between belong to which.
    """
    rank = {place: at for at, place in enumerate(order.tolist())}
    of_source: list[int | None] = []
    gone: dict[int, int] = {}
    end, number, inside = 0, 0, False
    for place in [*source.tolist(), None]:
        stays = place in rank
        if not stays and not inside:
            number += 1
        inside = not stays
        if place is not None:
            of_source.append(None if stays else number)
        upto = rank[place] if stays else len(order) if place is None else end
        gone |= dict.fromkeys(order[end:upto].tolist(), number)
        end = upto + stays
    return of_source, gone


def damage_figures(shown: Damaged) -> list[Figure]:
    """The text, its source and its target, each span in a color of its own."""
    parts: Sequence[tuple[str, str, list[tuple[str, int | None]]]] = (
        ("The text", "What goes is marked, each span with its number.", shown.text),
        ("What the encoder reads", "What stands for a span has its number.", shown.source),
        ("What the decoder writes", "From the text above, and nothing else.", shown.target),
    )
    return [Figure(name, caption, [Spans(pieces)]) for name, caption, pieces in parts]
