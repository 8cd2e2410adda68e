"""Measurement of how much the state of a word depends on each other word in its text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded
from bertkit.errors import DataError
from bertkit.extensions.classic.recurrent_config import RecurrentConfig
from bertkit.extensions.classic.word_pairs import find_word
from bertkit.models.encoder import Encoder
from bertkit.pipelines import Work
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.view.chart import curves
from bertkit.view.explain import read
from bertkit.view.figures import Figure, Marked, Share, Table
from bertkit.view.token_text import spelled

MAX_TOKENS = 64
"""Maximum number of tokens in a text. The measurement processes one copy of the text per token."""

DIRECTIONS = 16
"""Number of random directions in which the gradient of the word's state is computed."""

BACKWARD_COST = 2
"""Cost of a backward pass, relative to a forward pass."""


class Distance(msgspec.Struct, frozen=True):
    """Dependence of a word's last-layer state on each token of its text.

    It is measured by the norm of the gradient of the state with respect to the embedding of the
    token. All norms are divided by the norm for the state's own embedding.
    """

    tokens: list[str]
    word: tuple[int, int]
    """Range of characters of the word."""
    position: int
    """Index of the word's last token."""
    norms: list[float]
    """Relative gradient norm for each token."""
    steps: list[int | None]
    """Length of the path between each token and the word: their distance in an LSTM, 1 with
    attention, and None if there is no path."""
    by_distance: list[float]
    """Median of the relative gradient norms at each distance, from 0, over all tokens of the
    text."""


class DistancePipeline:
    """Pipeline that measures how a word's last-layer state depends on each token of its text."""

    policies: tuple[Long, ...] = ("error",)

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded

    def prepare(self, items: Sequence[tuple[str, str]], *, long: Long) -> list[Work]:
        """Encode words together with the texts that contain them.

        Raises:
            DataError: If a text does not contain the word, or has more than `MAX_TOKENS` tokens.
        """
        works = []
        for word, text in items:
            encoding = read(self.loaded, text, None, long="truncate")
            if encoding.truncated or len(encoding) > MAX_TOKENS:
                raise DataError(f"{text[:40]!r}…: more than {MAX_TOKENS} tokens; shorten the text")
            span = find_word(word, text)
            if span is None:
                raise DataError(
                    f"{text[:60]!r}: does not contain {word[:60]!r}; use a word of the text"
                )
            indices = encoding.covering(*span)
            if not len(indices):
                raise DataError(f"{word[:60]!r} has no token in the vocabulary; use another word")
            copies = (len(encoding) + DIRECTIONS) * (1 + BACKWARD_COST)
            works.append(Work([], (encoding, span, int(indices[-1])), len(encoding) * copies))
        return works

    def run(self, works: Sequence[Work]) -> list[Distance]:
        """Measure how the state of each word depends on the tokens of its text."""
        return [self._measure(*work.item) for work in works]

    def _measure(self, encoding: Encoding, word: tuple[int, int], position: int) -> Distance:
        encoder, tokens = self.loaded.model.encoder, len(encoding)
        squares = gradients(encoder, encoding, [*range(tokens), *[position] * DIRECTIONS])
        norms = np.sqrt(squares[tokens:].mean(0))
        own_norms = np.sqrt(squares[:tokens])
        ratios = own_norms / np.maximum(own_norms.diagonal()[:, None], 1e-30)
        gaps = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
        steps = [_steps(encoder, position, other) for other in range(tokens)]
        linked = np.array(
            [[_steps(encoder, a, b) is not None for b in range(tokens)] for a in range(tokens)]
        )
        return Distance(
            tokens=spelled(self.loaded.tokenizer, encoding.ids),
            word=word,
            position=position,
            norms=(norms / max(norms[position], 1e-30)).tolist(),
            steps=steps,
            by_distance=[
                float(np.median(ratios[linked & (gaps == distance)])) for distance in range(tokens)
            ],
        )


def gradients(encoder: Encoder, encoding: Encoding, indices: Sequence[int]) -> NDArray[np.float64]:
    """Compute squared gradient norms of states, each in a random direction.

    A row of the result belongs to one state, and a column to the embedding of one token. The mean
    of many rows for the same position estimates the squared norm of the Jacobian. The elements of
    the directions are ±1. They are sampled with a fixed seed, so the results are reproducible.
    Source: Hutchinson 1989, "A stochastic estimator of the trace of the influence matrix".

    Args:
        encoder: The encoder.
        encoding: The encoded text.
        indices: Positions of the states. A position may occur repeatedly.

    Shapes:
        returns: (indices, T).
    """
    device = next(encoder.parameters()).device
    inputs: list[Tensor] = []

    def capture(module: Any, args: Any, embedded: Tensor) -> Tensor:
        inputs.append(embedded.detach().requires_grad_())
        return inputs[0]

    handle = encoder.embedding.register_forward_hook(capture)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            batch = Batch.of([encoding] * len(indices)).to(device)
            states = encoder(batch)
            rows = states[batch.layout.first + torch.tensor(indices, device=device)]
            rng = torch.Generator().manual_seed(0)
            signs = torch.randint(2, rows.shape, generator=rng).to(rows) * 2 - 1
            (gradient,) = torch.autograd.grad((rows * signs).sum(), inputs[0])
    finally:
        handle.remove()
    squares = gradient.double().square().sum(1).view(len(indices), -1)
    return np.asarray(squares.cpu())


def _steps(encoder: Encoder, position: int, other: int) -> int | None:
    """Return the length of the path between two positions in a layer, or None if there is no path.

    Source: Vaswani et al. 2017, table 1 (maximum path length).
    """
    config = encoder.config
    is_backward = isinstance(config, RecurrentConfig) and config.recurrent.direction == "backward"
    if (config.is_causal and other > position) or (is_backward and other < position):
        return None
    return abs(position - other) if config.is_sequential else int(other != position)


def distance_figures(text: str, measures: Sequence[tuple[str, Distance]]) -> list[Figure]:
    """Return a figure of the dependence for each model, and a figure of its decay with distance.

    Args:
        text: The text.
        measures: Name and result of each model.
    """
    figures = []
    for name, measure in measures:
        rows = [
            (token, "none" if steps is None else str(steps), Share(min(norm, 1.0)))
            for token, steps, norm in zip(measure.tokens, measure.steps, measure.norms, strict=True)
        ]
        table = Table(name, rows, ("token", "steps", "gradient"))
        caption = (
            "Steps between each token and the last state of the marked word, and the gradient norm "
            "of this state with respect to the token’s embedding. The norms are relative to the "
            "norm for the state’s own embedding."
        )
        figures.append(Figure(name, caption, [Marked(text, [(*measure.word, "")]), table]))
    lines = {
        name: [(d, math.log10(ratio)) for d, ratio in enumerate(measure.by_distance) if ratio > 0]
        for name, measure in measures
    }
    chart = curves(lines, x="distance in tokens", y="log₁₀ of the relative gradient")
    caption = (
        "Median over all tokens of the text. In an LSTM, information about a token passes through "
        "every step between two tokens. With attention, a state reads each token directly."
    )
    return [*figures, Figure("Distance", caption, [chart])]
