"""How likely a model finds texts that are given, behind a prompt that is read once."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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


def score_endings(
    stepper: CausalStepper,
    prompt: NDArray[np.int64],
    texts: Sequence[Sequence[int]],
    endings: Sequence[Sequence[int]],
) -> NDArray[np.float64]:
    """The log-probability of each ending behind the prompt and each text.

    The prompt is read once, and each text once, whatever the number of endings.
    Shapes: T texts, E endings of one token at least -> (T, E).
    Raises: DataError for a prompt that fills the model, or with a text and an ending is longer.
    """
    longest = max(endings, key=len)
    for text in texts:
        stepper.room(Request(np.concatenate([prompt, text, longest[:-1]]).astype(np.int64)))
    state, logits = stepper.start([Request(prompt)])
    assert isinstance(state, Cache)
    scores = np.zeros((len(texts), len(endings)))
    most = max(LOGITS // logits.shape[1], 1)
    for places in by_length([len(text) for text in texts], most):
        rows = copy.copy(state)  # `keep` makes new tensors: the prompt's stay as they are
        rows.keep(torch.zeros(len(places), dtype=torch.long, device=logits.device))
        after = _read(stepper, rows, [texts[place] for place in places], logits)
        scores[places] = _ended(stepper, rows, after, endings)
    return scores


def _read(
    stepper: CausalStepper, state: Cache, texts: Sequence[Sequence[int]], before: Tensor
) -> Tensor:
    """Read a text for each row; the logits of what follows it. Shapes: before (1, V) -> (R, V)."""
    ids, counts = _padded(texts, before.device)
    if not ids.shape[1]:
        return before.expand(len(texts), -1)
    logits = stepper.step(state, ids)
    state.advance(counts)
    last = logits[torch.arange(len(texts), device=ids.device), (counts - 1).clamp(min=0)]
    return torch.where(counts[:, None] > 0, last, before)


def _ended(
    stepper: CausalStepper, state: Cache, after: Tensor, endings: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """What each ending scores behind each row. Shapes: after (R, V) -> (R, E)."""
    ids, counts = _padded(endings, after.device)
    scores = torch.log_softmax(after.double(), -1)[:, ids[:, 0]]
    if ids.shape[1] > 1:
        each = len(after)
        state.keep(torch.arange(each, device=ids.device).repeat_interleave(len(endings)))
        logits = stepper.step(state, ids[:, :-1].repeat(each, 1)).double()
        chosen = logits.gather(2, ids[:, 1:].repeat(each, 1)[:, :, None])[:, :, 0]
        rest = (chosen - logits.logsumexp(-1)).view(each, len(endings), -1)
        real = torch.arange(1, ids.shape[1], device=ids.device) < counts[:, None]
        scores = scores + (rest * real).sum(-1)
    return scores.cpu().numpy()


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Shapes: (R, C) with zeros behind the shorter ones, and how long each is (R,)."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    counts = torch.tensor([len(row) for row in rows])
    return pad_sequence(tensors, batch_first=True).to(device), counts.to(device)
