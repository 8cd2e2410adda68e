"""Texts of tokens that people can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import decoders
from torch import Tensor

from bertkit.pipelines import Candidate
from bertkit.text.tokenizer import Tokenizer

CANDIDATES = 10
"""Number of candidates that a prediction lists."""

SPACE, LINE = "▁", "↵"
"""Symbols that represent a space, as in SentencePiece, and a line break."""


def spelled(tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
    """Return the text of each token.

    A byte-level BPE vocabulary represents bytes as letters. The bytes are decoded, unless a token
    contains only some of the bytes of a character.

    Args:
        tokenizer: The tokenizer.
        ids: Token ids.
    """
    tokens = tokenizer.pieces(ids)
    if not isinstance(tokenizer.core.decoder, decoders.ByteLevel):
        return tokens
    texts = [tokenizer.core.decoder.decode([token]) for token in tokens]
    return [
        token if not text or "\ufffd" in text else text.replace(" ", SPACE).replace("\n", LINE)
        for token, text in zip(tokens, texts, strict=True)
    ]


def likeliest(
    tokenizer: Tokenizer, probabilities: Tensor, top: int = CANDIDATES
) -> list[Candidate]:
    """Return the most probable tokens, in the order of descending probability.

    Args:
        tokenizer: The tokenizer.
        probabilities: Probability of each token of the vocabulary.
        top: Maximum number of tokens to return.

    Shapes:
        probabilities: (V,).
    """
    best = probabilities.topk(min(top, len(probabilities)))
    return list(map(Candidate, spelled(tokenizer, best.indices.tolist()), best.values.tolist()))
