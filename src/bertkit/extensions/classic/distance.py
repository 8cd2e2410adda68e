"""How much the state of one word depends on each other word of its text, near or far."""

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
from bertkit.models.encoder import Encoder
from bertkit.pipelines import Work
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.word_splitting import find_word
from bertkit.view.chart import curves
from bertkit.view.explain import read
from bertkit.view.figures import Figure, Marked, Share, Table
from bertkit.view.token_text import spelled

MAX_TOKENS = 64
"""Tokens of a text at most: each reads a copy of it."""

DIRECTIONS = 16
"""Of the state of the word asked for, in which its gradient is taken."""

BACKWARD_COST = 2
"""What the way back costs, in ways forward."""


class Distance(msgspec.Struct, frozen=True):
    """Norms of gradients of last states by embeddings, shares of a state's own embedding's.

    `steps` are those between each token and the word: as many as lie between in an LSTM, one by
    attention, None where no way leads.
    """

    tokens: list[str]
    word: tuple[int, int]
    """The characters of the word."""
    place: int
    """Its last token."""
    norms: list[float]
    steps: list[int | None]
    by_distance: list[float]
    """The median at each distance that the text has, from 0 on, over all of its tokens."""


class DistancePipeline:
    """A pipeline: words and texts -> how each text's tokens bear on the word's last state."""

    policies: tuple[Long, ...] = ("error",)

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded

    def prepare(self, items: Sequence[tuple[str, str]], *, long: Long) -> list[Work]:
        """Raises: DataError for a text without the word, or longer than `MAX_TOKENS` tokens."""
        works = []
        for word, text in items:
            encoding = read(self.loaded, text, None, long="truncate")
            if encoding.truncated or len(encoding) > MAX_TOKENS:
                raise DataError(f"{text[:40]!r}…: a page shows {MAX_TOKENS} tokens; shorten it")
            span = find_word(word, text)
            if span is None:
                raise DataError(
                    f"{word[:60]!r} is not in {text[:60]!r}; write it as it stands there"
                )
            place = encoding.covering(*span)
            if not len(place):
                raise DataError(
                    f"{word[:60]!r}: the vocabulary has no piece for it; take another word"
                )
            copies = (len(encoding) + DIRECTIONS) * (1 + BACKWARD_COST)
            works.append(Work([], (encoding, span, int(place[-1])), len(encoding) * copies))
        return works

    def run(self, works: Sequence[Work]) -> list[Distance]:
        """How far each word looks."""
        return [self._measured(*work.item) for work in works]

    def _measured(self, encoding: Encoding, word: tuple[int, int], place: int) -> Distance:
        encoder, tokens = self.loaded.model.encoder, len(encoding)
        squares = gradients(encoder, encoding, [*range(tokens), *[place] * DIRECTIONS])
        norms = np.sqrt(squares[tokens:].mean(0))
        each = np.sqrt(squares[:tokens])
        shares = each / np.maximum(each.diagonal()[:, None], 1e-30)
        apart = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
        ways = [_steps(encoder, place, other) for other in range(tokens)]
        seen = np.array(
            [[_steps(encoder, a, b) is not None for b in range(tokens)] for a in range(tokens)]
        )
        return Distance(
            tokens=spelled(self.loaded.tokenizer, encoding.ids),
            word=word,
            place=place,
            norms=(norms / max(norms[place], 1e-30)).tolist(),
            steps=ways,
            by_distance=[
                float(np.median(shares[seen & (apart == distance)])) for distance in range(tokens)
            ],
        )


def gradients(encoder: Encoder, encoding: Encoding, places: Sequence[int]) -> NDArray[np.float64]:
    """The squared norm of the gradient of a state in a random direction, by each embedding; one
    row for each place. The mean of many of a place estimates the squared norm of the Jacobian.

    Shapes: (places, T). The directions are of ±1, drawn from a seed: the same text gives the same.
    Source: Hutchinson 1989, "A stochastic estimator of the trace of the influence matrix".
    """
    device = next(encoder.parameters()).device
    inputs: list[Tensor] = []

    def keep(module: Any, args: Any, embedded: Tensor) -> Tensor:
        inputs.append(embedded.detach().requires_grad_())
        return inputs[0]

    handle = encoder.embedding.register_forward_hook(keep)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            batch = Batch.of([encoding] * len(places)).to(device)
            states = encoder(batch)
            rows = states[batch.layout.first + torch.tensor(places, device=device)]
            draw = torch.Generator().manual_seed(0)
            signs = torch.randint(2, rows.shape, generator=draw).to(rows) * 2 - 1
            (gradient,) = torch.autograd.grad((rows * signs).sum(), inputs[0])
    finally:
        handle.remove()
    squares = gradient.double().square().sum(1).view(len(places), -1)
    return np.asarray(squares.cpu())


def _steps(encoder: Encoder, place: int, other: int) -> int | None:
    """Return the path length of a layer between two positions; None if there is no path.

    Source: Vaswani et al. 2017, table 1 (maximum path length).
    """
    config = encoder.config
    is_backward = isinstance(config, RecurrentConfig) and config.recurrent.direction == "backward"
    if (config.is_causal and other > place) or (is_backward and other < place):
        return None
    return abs(place - other) if config.is_sequential else int(other != place)


def distance_figures(text: str, measures: Sequence[tuple[str, Distance]]) -> list[Figure]:
    """What each model's state of the word depends on, and how that falls with the distance."""
    figures = []
    for name, one in measures:
        rows = [
            (token, "none" if steps is None else str(steps), Share(min(norm, 1.0)))
            for token, steps, norm in zip(one.tokens, one.steps, one.norms, strict=True)
        ]
        table = Table(name, rows, ("token", "steps", "gradient"))
        caption = (
            "How many steps lie between each token and the last state of the marked word, and the "
            "norm of that state’s gradient by the token’s embedding, a share of its own’s."
        )
        figures.append(Figure(name, caption, [Marked(text, [(*one.word, "")]), table]))
    lines = {
        name: [(d, math.log10(share)) for d, share in enumerate(one.by_distance) if share > 0]
        for name, one in measures
    }
    chart = curves(lines, x="distance in tokens", y="log₁₀ of the gradient’s share")
    caption = (
        "The median over all tokens of the text. What an LSTM knows of a token goes through every "
        "step between; attention looks at each token at once."
    )
    return [*figures, Figure("Distance", caption, [chart])]
