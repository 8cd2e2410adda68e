"""Hidden states of words in context, in every layer."""

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
    engine: Engine, encodings: Sequence[Encoding], token_indices: Sequence[NDArray[np.int64]]
) -> NDArray[np.float32]:
    """Compute the mean state of the tokens of one word per text.

    Args:
        engine: The engine.
        encodings: The texts.
        token_indices: Token indices of the word in each text.

    Returns:
        The states in all layers; the first is the embedding.

    Shapes:
        returns: (layers + 1, S, D).
    """
    config = engine.model.config
    states = np.empty((config.layers + 1, len(encodings), config.hidden), dtype=np.float32)
    forward = layer_states(range(config.layers + 1))
    for index, rows in engine.stream(encodings, forward, token_indices):
        states[:, index] = rows.float().mean(0)
    return states


def layer_states(layers: Sequence[int]) -> Forward:
    """Return a function that computes the states of some layers at a batch's token indices.

    Args:
        layers: Numbers of the layers; 0 is the embedding.

    Shapes:
        The function returns (P, layers, D).
    """

    def forward(model: Model, batch: Batch) -> Tensor:
        assert batch.token_indices is not None
        trace = Trace(weights=False)
        model.encoder(batch, trace)
        return torch.stack([trace.states[layer][batch.token_indices] for layer in layers], 1)

    return forward


def token_indices_of(encoding: Encoding, word: tuple[int, int], text: str) -> NDArray[np.int64]:
    """Return the token indices of a word of a text.

    Args:
        encoding: Encoding of the text.
        word: Start and end of the word in the text.
        text: The text.

    Raises:
        DataError: If the word has no token, or is beyond the maximum length.
    """
    start, end = word
    offsets = encoding.offsets
    is_text = np.array([word is not None for word in encoding.words])
    indices = np.flatnonzero(is_text & (offsets[:, 0] < end) & (offsets[:, 1] > start))
    if not len(indices):
        raise DataError(
            f"{text[:60]!r}: {text[start:end]!r} has no token within the maximum length; shorten "
            "the text or remove it"
        )
    return indices
