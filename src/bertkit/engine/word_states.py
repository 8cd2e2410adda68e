"""The states of words in their texts, in every layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch
from bertkit.engine.engine import Engine, Forward
from bertkit.errors import DataError
from bertkit.models.model import Model
from bertkit.nn.attention import Trace
from bertkit.text.encoding import Encoding


def word_states(
    engine: Engine, encodings: Sequence[Encoding], pieces: Sequence[NDArray[np.int64]]
) -> NDArray[np.float32]:
    """The mean state of the pieces of one word of each text. Shapes: (layers + 1, S, D)."""
    config = engine.model.config
    states = np.empty((config.layers + 1, len(encodings), config.hidden), dtype=np.float32)
    forward = layer_states(range(config.layers + 1))
    for place, rows in engine.stream(encodings, forward, pieces):
        states[:, place] = rows.float().mean(0)
    return states


def layer_states(layers: Sequence[int]) -> Forward:
    """States of these layers at the batch's token indices; 0 is the embedding.

    Shapes: (P, layers, D).
    """

    def forward(model: Model, batch: Batch) -> Tensor:
        assert batch.token_indices is not None
        trace = Trace(weights=False)
        model.encoder(batch, trace)
        return torch.stack([trace.states[layer][batch.token_indices] for layer in layers], 1)

    return forward


def pieces_of(encoding: Encoding, word: tuple[int, int], text: str) -> NDArray[np.int64]:
    """The token indices of the pieces that a word of the text has.

    Raises: DataError for a word without a piece, or behind what the model reads.
    """
    start, end = word
    offsets = encoding.offsets
    real = np.array([word is not None for word in encoding.words])
    pieces = np.flatnonzero(real & (offsets[:, 0] < end) & (offsets[:, 1] > start))
    if not len(pieces):
        raise DataError(
            f"{text[:60]!r}: the model reads no piece of {text[start:end]!r}; shorten the text, or "
            "leave it out"
        )
    return pieces
