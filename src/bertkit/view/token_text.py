"""Tokens as people read them."""

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

SPACE, LINE = "▁", "↵"
"""What stands for a space, as in SentencePiece, and for the end of a line."""


def spelled(tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
    """The vocabulary's spelling of each id; bytes, which have letters of their own there, are read
    as the text that they are, where one token is a whole one.
    """
    pieces = tokenizer.pieces(ids)
    if not isinstance(tokenizer.core.decoder, decoders.ByteLevel):
        return pieces
    texts = [tokenizer.core.decoder.decode([piece]) for piece in pieces]
    return [
        piece if not text or "\ufffd" in text else text.replace(" ", SPACE).replace("\n", LINE)
        for piece, text in zip(pieces, texts, strict=True)
    ]


def likeliest(tokenizer: Tokenizer, chances: Tensor, top: int = CANDIDATES) -> list[Candidate]:
    """The likeliest tokens, likeliest first. Shapes: (V,)."""
    best = chances.topk(min(top, len(chances)))
    return list(map(Candidate, spelled(tokenizer, best.indices.tolist()), best.values.tolist()))
