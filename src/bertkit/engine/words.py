"""The states of words in their texts, in every layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.data.words import Range
from bertkit.engine.engine import Engine
from bertkit.errors import DataError
from bertkit.nn.attention import Trace
from bertkit.text.tokenizer import Encoding


@torch.inference_mode()
def word_states(
    engine: Engine, encodings: Sequence[Encoding], ranges: Sequence[Range], texts: Sequence[str]
) -> NDArray[np.float32]:
    """The mean state of the pieces of one word of each text. Shapes: (layers + 1, S, D).

    Raises: DataError for a word without a piece, or behind what the model reads.
    """
    chosen = [_pieces(*given) for given in zip(encodings, ranges, texts, strict=True)]
    config = engine.model.config
    states = np.empty((config.layers + 1, len(encodings), config.hidden), dtype=np.float32)
    for places, batch in engine.batches(encodings):
        trace = Trace(weights=False)
        engine.model.encoder(batch, trace)
        first = batch.layout.first.tolist()
        for place, start in zip(places, first, strict=True):
            rows = torch.from_numpy(chosen[place] + start).to(engine.device)
            for layer, found in enumerate(trace.states):
                states[layer, place] = found[rows].float().mean(0).cpu()
    return states


def _pieces(encoding: Encoding, word: Range, text: str) -> NDArray[np.int64]:
    """The places of the pieces that a word of the text has."""
    start, end = word
    offsets = encoding.offsets
    real = np.array([owner is not None for owner in encoding.words])
    found = np.flatnonzero(real & (offsets[:, 0] < end) & (offsets[:, 1] > start))
    if not len(found):
        raise DataError(
            f"{text[:60]!r}: the model reads no piece of {text[start:end]!r}; shorten the text, or "
            "leave it out"
        )
    return found
