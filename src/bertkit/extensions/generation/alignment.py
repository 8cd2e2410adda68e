"""Attention weights between the tokens of a translation and the tokens of its source text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded, load
from bertkit.errors import CheckpointError, DataError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.nn.attention import Trace


@dataclass(frozen=True)
class Alignment:
    """Tokens of a source text and of its translation, with the attention weights between them.

    Shapes:
        weights: (target tokens, source tokens); rows sum to one.
    """

    source: list[str]
    target: list[str]
    weights: NDArray[np.float32]


def alignment(
    model: str | Path | Loaded | Generate, text: str, translation: str | None = None
) -> Alignment:
    """Compute how much each token of a translation attends to each token of the source text.

    The weights are the mean over layers and heads. The target tokens include special tokens, such
    as the EOS token and the BOS token of BART.

    Args:
        model: An encoder-decoder model whose decoder attends to the source.
        text: The source text.
        translation: The translation. Default: the translation that the model generates.

    Returns:
        The tokens of both texts and the weights.

    Raises:
        CheckpointError: If the model has no decoder that attends to a source.
        DataError: If a text is empty or too long.

    Source:
        Bahdanau et al. 2015, section 5.2.1.
    """
    if isinstance(model, Generate):
        writer = model
    else:
        loaded = model if isinstance(model, Loaded) else load(model)
        check_attention(loaded)
        writer = Generate(loaded)
    check_attention(writer.loaded)
    if not text.strip():
        raise DataError("text: must not be empty")
    (request,) = writer.requests([text])
    most, end = writer.stepper.max_new_tokens(request), list(writer.rules([text]).ends[:1])
    begin = [*(writer.rules([text]).prefix or writer.target.added[0])]
    if translation is not None:
        ids = begin + writer.target.ids([translation])[0].tolist()
    else:
        ((best, *_),) = writer([text])
        ids = begin + writer.target.ids([best.text])[0].tolist()
        # A truncated text ends with its last token instead of the EOS token.
        if ids and best.ended == "length":
            *ids, last = ids[:most]
            end = [last]
    if len(ids) >= most:
        raise DataError(
            f"translation: it has {len(ids):,} tokens, but the model supports at most "
            f"{most - 1:,}; shorten the translation"
        )
    trace = Trace()
    writer.stepper.read(request, ids, trace)
    weights = torch.stack([layer[0] for layer in trace.cross]).mean((0, 1))
    assert request.source is not None
    return Alignment(
        writer.tokenizer.pieces(request.source),
        writer.target.pieces([*ids, *end]),
        weights.cpu().numpy(),
    )


def check_attention(loaded: Loaded) -> None:
    """Check that the decoder attends to a source.

    Raises:
        CheckpointError: If the model has no decoder, or its decoder does not attend to a source.
    """
    decoder = loaded.model.decoder
    if decoder is None:
        raise CheckpointError(
            f"{loaded.folder}: alignment requires a decoder that attends to a source text; "
            "use an encoder-decoder model"
        )
    if not decoder.config.attends_to_source:
        raise CheckpointError(
            f"{loaded.folder}: the decoder does not attend to the source; use a Transformer, or "
            "an LSTM with Luong or Bahdanau attention"
        )
