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
from bertkit.extensions.generation.stepper import Request, Stepper, StepperState

MAX_LOGITS = 1 << 26
"""Logits that exist at a time, about."""


def score_each(
    stepper: Stepper, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> NDArray[np.float64]:
    """The log-probability of each second text behind its first, one that comes again is read once;
    neither may be empty. Shapes: R pairs -> (R,). Raises: DataError as `score` does.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for place, (first, _) in enumerate(texts):
        places.setdefault(tuple(first), []).append(place)
    scores = np.zeros(len(texts))
    for first, own in places.items():
        scores[own] = score(stepper, np.array(first), [()], [texts[place][1] for place in own])[0]
    return scores


def score(
    stepper: Stepper,
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
    scores = np.zeros((len(texts), len(endings)))
    most = max(MAX_LOGITS // logits.shape[1], 1)
    for places in by_length([len(text) for text in texts], most):
        rows = copy.copy(state)  # `keep` makes new tensors: the prompt's stay as they are
        rows.keep(torch.zeros(len(places), dtype=torch.long, device=logits.device))
        after = _read(stepper, rows, [texts[place] for place in places], logits)
        scores[places] = _ended(stepper, rows, after, endings, most)
    return scores


def _read(
    stepper: Stepper, state: StepperState, texts: Sequence[Sequence[int]], before: Tensor
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
    stepper: Stepper,
    state: StepperState,
    after: Tensor,
    endings: Sequence[Sequence[int]],
    most: int,
) -> NDArray[np.float64]:
    """What each ending scores behind each row, about `most` tokens at a time.

    Shapes: after (R, V) -> (R, E).
    """
    first, each = torch.log_softmax(after.double(), -1), len(after)
    scores = np.zeros((each, len(endings)))
    for places in by_length([each * len(ending) for ending in endings], most):
        ids, counts = _padded([endings[place] for place in places], after.device)
        behind = first[:, ids[:, 0]]
        if ids.shape[1] > 1:
            rows = copy.copy(state)
            rows.keep(torch.arange(each, device=ids.device).repeat_interleave(len(places)))
            logits = stepper.step(rows, ids[:, :-1].repeat(each, 1)).double()
            chosen = logits.gather(2, ids[:, 1:].repeat(each, 1)[:, :, None])[:, :, 0]
            rest = (chosen - logits.logsumexp(-1)).view(each, len(places), -1)
            real = torch.arange(1, ids.shape[1], device=ids.device) < counts[:, None]
            behind = behind + (rest * real).sum(-1)
        scores[:, places] = behind.cpu().numpy()
    return scores


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Shapes: (R, C) with zeros behind the shorter ones, and how long each is (R,)."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    counts = torch.tensor([len(row) for row in rows])
    return pad_sequence(tensors, batch_first=True).to(device), counts.to(device)
