"""Hidden states of words in their contexts, in every layer."""

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
    """Compute the hidden state of one word per text, in every layer.

    The state of a word is the mean of the states of its tokens.

    Args:
        engine: The engine that runs the model.
        encodings: Encodings of the texts.
        token_indices: For each text, the indices of the word's tokens.

    Returns:
        The states by layer. Layer 0 is the embedding layer.

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
    """Return a function that computes hidden states of a batch at its token indices.

    Args:
        layers: Indices of the layers whose states are returned. Layer 0 is the embedding layer.

    Shapes:
        The function returns (P, number of layers, D).
    """

    def forward(model: Model, batch: Batch) -> Tensor:
        assert batch.token_indices is not None
        trace = Trace(weights=False)
        model.encoder(batch, trace)
        return torch.stack([trace.states[layer][batch.token_indices] for layer in layers], 1)

    return forward


def token_indices_of(encoding: Encoding, word: tuple[int, int], text: str) -> NDArray[np.int64]:
    """Return the indices of the tokens that overlap a word of a text.

    Args:
        encoding: Encoding of the text.
        word: Indices of the word's first character, and of the character after its last one.
        text: The text.

    Raises:
        DataError: If no token overlaps the word, such as when the text was truncated before it.
    """
    start, end = word
    offsets = encoding.offsets
    is_text = np.array([word is not None for word in encoding.words])
    indices = np.flatnonzero(is_text & (offsets[:, 0] < end) & (offsets[:, 1] > start))
    if not len(indices):
        raise DataError(
            f"{text[:60]!r}: {text[start:end]!r} has no token within the maximum length; shorten "
            "or remove the text"
        )
    return indices
