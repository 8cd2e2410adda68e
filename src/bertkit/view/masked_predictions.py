"""What a model would put in the place of words: of each, of several together, or of the next.

Axis letters are those of `batch.py`; here T is the text's tokens, specials included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded
from bertkit.errors import CheckpointError, ConfigError, TokenizerError
from bertkit.pipelines import Candidate, FillMask
from bertkit.text.encoding import Encoding
from bertkit.view.page_data import Hidden, Word
from bertkit.view.token_text import CANDIDATES, likeliest

MASKED_TOKENS = 8_192
"""Tokens of the batch in which each word is masked once; a long text has its first words so."""


def filler(loaded: Loaded) -> FillMask | None:
    """What fills masks, or None without a trained head, or anything to mask with."""
    try:
        return FillMask(loaded) if "mlm" in loaded.model.heads and loaded.tokenizer.mask else None
    except (CheckpointError, TokenizerError):
        return None


def masked(
    fill: FillMask | None, encoding: Encoding, words: Sequence[Word]
) -> list[list[list[Candidate]]] | None:
    """The likeliest tokens for each word, masked in a copy of the text of its own."""
    if fill is None:
        return None
    shown = words[: max(1, MASKED_TOKENS // len(encoding))]
    return _filled(fill, encoding, [[word] for word in shown])


def _filled(
    fill: FillMask, encoding: Encoding, groups: Sequence[Sequence[Word]]
) -> list[list[list[Candidate]]]:
    """The likeliest tokens at each token of each group's words, which are masked together."""
    tokens = [
        np.concatenate([np.arange(word.first, word.end) for word in group]) for group in groups
    ]
    copies = [replace(encoding, ids=encoding.ids.copy()) for _ in groups]
    for copy, indices in zip(copies, tokens, strict=True):
        copy.ids[indices] = fill.tokenizer.mask
    return fill.candidates(copies, tokens, CANDIDATES)


def read_place(name: str) -> int:
    """The place of a word as it is written. Raises: ConfigError for what is no number."""
    if not (name.isascii() and name.isdecimal() and len(name) < 10):
        raise ConfigError(f"hide: {name!r} is no place of a word; give its number, from 0")
    return int(name)


def check_hidden(fill: FillMask | None, words: Sequence[Word], hide: Sequence[int]) -> None:
    """Raises: ConfigError for words that are not there, or that nothing can fill."""
    if hide and fill is None:
        raise ConfigError("hide: this model has no trained head for masked words; hide none")
    for place in hide:
        if not 0 <= place < len(words):
            raise ConfigError(
                f"hide: there is no word {place}; this text has 0 to {len(words) - 1}"
            )


def hidden(
    fill: FillMask | None, encoding: Encoding, words: Sequence[Word], hide: Sequence[int]
) -> Hidden | None:
    """The likeliest tokens for words that are masked together."""
    if not hide:
        return None
    check_hidden(fill, words, hide)
    assert fill is not None
    places = sorted(set(hide))
    chosen = [words[place] for place in places]
    (found,) = _filled(fill, encoding, [chosen])
    pieces = iter(found)
    return Hidden(places, [[next(pieces) for _ in range(w.first, w.end)] for w in chosen])


def next_words(
    loaded: Loaded, states: Tensor, encoding: Encoding, words: Sequence[Word]
) -> list[list[list[Candidate]]] | None:
    """The likeliest tokens at each token of each word, behind those before it. Shapes: (T, D)."""
    if "lm" not in loaded.model.heads:
        return None
    tokenizer = loaded.tokenizer
    logits = loaded.model.heads["lm"](states, Batch.of([encoding]).to(states.device)).float()
    chances = torch.softmax(logits[:, : tokenizer.vocab_size], -1)
    before: list[list[Candidate]] = [
        [],
        *(likeliest(tokenizer, row) for row in chances[:-1]),
    ]
    return [before[word.first : word.end] for word in words]
