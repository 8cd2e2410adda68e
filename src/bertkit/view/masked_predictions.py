"""Predictions for words that are masked alone or together, and for next tokens.

Axis letters are as in `batch.py`. T is the number of tokens of the text, including special tokens.
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
"""Maximum number of tokens of the batch that contains a copy of the text for each masked word. This
limits the number of words for which predictions are computed."""


def filler(loaded: Loaded) -> FillMask | None:
    """Return a fill-mask pipeline, or None if the model has no MLM head or no mask token."""
    try:
        return FillMask(loaded) if "mlm" in loaded.model.heads and loaded.tokenizer.mask else None
    except (CheckpointError, TokenizerError):
        return None


def masked(
    fill: FillMask | None, encoding: Encoding, words: Sequence[Word]
) -> list[list[list[Candidate]]] | None:
    """Predict each word from a copy of the text in which only this word is masked.

    Args:
        fill: Fill-mask pipeline.
        encoding: The text.
        words: The words.

    Returns:
        The most probable tokens for each token of each word, or None without a pipeline.
    """
    if fill is None:
        return None
    shown = words[: max(1, MASKED_TOKENS // len(encoding))]
    return _predict(fill, encoding, [[word] for word in shown])


def _predict(
    fill: FillMask, encoding: Encoding, groups: Sequence[Sequence[Word]]
) -> list[list[list[Candidate]]]:
    """Predict the tokens of each group of words. The words of a group are masked together."""
    tokens = [
        np.concatenate([np.arange(word.first, word.end) for word in group]) for group in groups
    ]
    copies = [replace(encoding, ids=encoding.ids.copy()) for _ in groups]
    for copy, indices in zip(copies, tokens, strict=True):
        copy.ids[indices] = fill.tokenizer.mask
    return fill.candidates(copies, tokens, CANDIDATES)


def parse_word_index(name: str) -> int:
    """Parse the index of a word.

    Raises:
        ConfigError: If the index is not a number.
    """
    if not (name.isascii() and name.isdecimal() and len(name) < 10):
        raise ConfigError(f"hide: must be the index of a word, from 0, got {name!r}")
    return int(name)


def check_hidden(fill: FillMask | None, words: Sequence[Word], hide: Sequence[int]) -> None:
    """Check the indices of words that are masked together.

    Args:
        fill: Fill-mask pipeline.
        words: The words.
        hide: Indices of the words to mask.

    Raises:
        ConfigError: If there is no pipeline, or a word does not exist.
    """
    if hide and fill is None:
        raise ConfigError("hide: this model has no trained MLM head; remove this setting")
    for index in hide:
        if not 0 <= index < len(words):
            raise ConfigError(f"hide: must be between 0 and {len(words) - 1}, got {index}")


def hidden(
    fill: FillMask | None, encoding: Encoding, words: Sequence[Word], hide: Sequence[int]
) -> Hidden | None:
    """Predict words that are masked together.

    Args:
        fill: Fill-mask pipeline.
        encoding: The text.
        words: The words.
        hide: Indices of the words to mask.

    Raises:
        ConfigError: If there is no pipeline, or a word does not exist.
    """
    if not hide:
        return None
    check_hidden(fill, words, hide)
    assert fill is not None
    indices = sorted(set(hide))
    chosen = [words[index] for index in indices]
    (predictions,) = _predict(fill, encoding, [chosen])
    tokens = iter(predictions)
    return Hidden(indices, [[next(tokens) for _ in range(w.first, w.end)] for w in chosen])


def next_words(
    loaded: Loaded, states: Tensor, encoding: Encoding, words: Sequence[Word]
) -> list[list[list[Candidate]]] | None:
    """Predict each token of each word from the tokens before it.

    Args:
        loaded: The model.
        states: Last hidden states.
        encoding: The text.
        words: The words.

    Returns:
        The most probable tokens for each token of each word, or None if the model has no LM head.
        There are no predictions for the first token of the text.

    Shapes:
        states: (T, D).
    """
    if "lm" not in loaded.model.heads:
        return None
    tokenizer = loaded.tokenizer
    logits = loaded.model.heads["lm"](states, Batch.of([encoding]).to(states.device)).float()
    probabilities = torch.softmax(logits[:, : tokenizer.vocab_size], -1)
    predictions: list[list[Candidate]] = [
        [],
        *(likeliest(tokenizer, row) for row in probabilities[:-1]),
    ]
    return [predictions[word.first : word.end] for word in words]
