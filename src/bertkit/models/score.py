"""How likely a model finds texts that are given, behind a prompt that is read once."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.batch import by_length
from bertkit.models.stepper import CausalStepper, Request
from bertkit.nn.cache import Cache

LOGITS = 1 << 26
"""Logits that exist at a time."""


def score_each(
    stepper: CausalStepper, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[NDArray[np.float64]]:
    """`score` of prompts with a continuation each, in their order; a prompt that comes again is
    read once. Neither may be empty. Raises: DataError as `score` does."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, (prompt, _) in enumerate(texts):
        places.setdefault(tuple(prompt), []).append(place)
    scores: list[NDArray[np.float64]] = [np.zeros(0)] * len(texts)
    for prompt, own in places.items():
        each = score(stepper, np.array(prompt), [texts[place][1] for place in own])
        for place, one in zip(own, each, strict=True):
            scores[place] = one
    return scores


def score(
    stepper: CausalStepper, prompt: NDArray[np.int64], continuations: Sequence[Sequence[int]]
) -> list[NDArray[np.float64]]:
    """The log-probability of each token of each continuation, from those before it.

    Raises: DataError for a prompt that fills the model, or with a continuation is longer.
    """
    for tokens in continuations:
        stepper.room(Request(np.append(prompt, tokens[:-1])))
    state, logits = stepper.start([Request(prompt)])
    assert isinstance(state, Cache)
    first = torch.log_softmax(logits[0].double(), -1)
    scores: list[NDArray[np.float64]] = [np.zeros(0)] * len(continuations)
    most = max(LOGITS // logits.shape[1], 1)
    for places in by_length([len(tokens) for tokens in continuations], most):
        width = max(len(continuations[place]) for place in places) - 1
        rest = torch.zeros(len(places), 0, dtype=torch.float64)
        if width:
            ids = torch.zeros(len(places), width, dtype=torch.long)
            after = torch.zeros(len(places), width, dtype=torch.long)
            for row, place in enumerate(places):
                read = torch.tensor(continuations[place], dtype=torch.long)
                ids[row, : len(read) - 1] = read[:-1]
                after[row, : len(read) - 1] = read[1:]
            rows = copy.copy(state)  # `keep` makes new tensors: the prompt's stay as they are
            rows.keep(torch.zeros(len(places), dtype=torch.long, device=logits.device))
            out = stepper.step(rows, ids.to(logits.device)).double()
            chosen = out.gather(2, after.to(out.device)[:, :, None])[:, :, 0]
            rest = (chosen - out.logsumexp(-1)).cpu()
        for row, place in enumerate(places):
            tokens = continuations[place]
            behind = rest[row, : len(tokens) - 1].numpy()
            scores[place] = np.append(float(first[tokens[0]]), behind)
    return scores
