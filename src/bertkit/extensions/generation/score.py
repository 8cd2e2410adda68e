"""Log-probabilities of given texts after a prompt. The prompt is processed only once."""

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
"""Approximate maximum number of logits in memory at a time."""


def score_each(
    stepper: Stepper, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> NDArray[np.float64]:
    """Compute the log-probability of the second text in each pair, given the first.

    If several pairs have the same first text, it is processed only once.

    Args:
        stepper: The model.
        texts: Token ids of both texts of each pair. No text may be empty.

    Raises:
        DataError: If a pair is longer than the model supports.

    Shapes:
        Returns (R,) for R pairs.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, (prompt, _) in enumerate(texts):
        groups.setdefault(tuple(prompt), []).append(index)
    scores = np.zeros(len(texts))
    for prompt, indices in groups.items():
        endings = [texts[index][1] for index in indices]
        scores[indices] = score(stepper, np.array(prompt), [()], endings)[0]
    return scores


def score(
    stepper: Stepper,
    prompt: NDArray[np.int64],
    texts: Sequence[Sequence[int]],
    endings: Sequence[Sequence[int]],
) -> NDArray[np.float64]:
    """Compute the log-probability of each ending after the prompt followed by each text.

    The prompt and each text are processed only once, for any number of endings.

    Args:
        stepper: The model.
        prompt: Token ids of the prompt.
        texts: Token ids of T texts, each of which follows the prompt.
        endings: Token ids of E endings, each with at least one token.

    Raises:
        DataError: If the prompt, a text, and an ending together are longer than the model supports.

    Shapes:
        Returns (T, E).
    """
    longest = max(endings, key=len)
    for text in texts:
        ids = np.concatenate([prompt, text, longest[:-1]])
        stepper.max_new_tokens(Request(ids.astype(np.int64)))
    state, logits = stepper.start([Request(prompt)])
    scores = np.zeros((len(texts), len(endings)))
    most = max(MAX_LOGITS // logits.shape[1], 1)
    for indices in by_length([len(text) for text in texts], most):
        # `keep` creates new tensors, so the state of the prompt does not change.
        rows = copy.copy(state)
        rows.keep(torch.zeros(len(indices), dtype=torch.long, device=logits.device))
        after = _read(stepper, rows, [texts[index] for index in indices], logits)
        scores[indices] = _score_endings(stepper, rows, after, endings, most)
    return scores


def _read(
    stepper: Stepper, state: StepperState, texts: Sequence[Sequence[int]], before: Tensor
) -> Tensor:
    """Process one text in each row, and return the logits of the token after each text.

    Shapes:
        before: (1, V), the logits of the token before the texts; returns (R, V).
    """
    ids, counts = _pad(texts, before.device)
    if not ids.shape[1]:
        return before.expand(len(texts), -1)
    logits = stepper.step(state, ids)
    state.advance(counts)
    last = logits[torch.arange(len(texts), device=ids.device), (counts - 1).clamp(min=0)]
    return torch.where(counts[:, None] > 0, last, before)


def _score_endings(
    stepper: Stepper,
    state: StepperState,
    after: Tensor,
    endings: Sequence[Sequence[int]],
    most: int,
) -> NDArray[np.float64]:
    """Compute the log-probability of each ending after each row, for about `most` tokens at a time.

    Shapes:
        after: (R, V), the logits of the first token of an ending; returns (R, E).
    """
    first, count = torch.log_softmax(after.double(), -1), len(after)
    scores = np.zeros((count, len(endings)))
    for indices in by_length([count * len(ending) for ending in endings], most):
        ids, counts = _pad([endings[index] for index in indices], after.device)
        sums = first[:, ids[:, 0]]
        if ids.shape[1] > 1:
            rows = copy.copy(state)
            rows.keep(torch.arange(count, device=ids.device).repeat_interleave(len(indices)))
            logits = stepper.step(rows, ids[:, :-1].repeat(count, 1)).double()
            chosen = logits.gather(2, ids[:, 1:].repeat(count, 1)[:, :, None])[:, :, 0]
            rest = (chosen - logits.logsumexp(-1)).view(count, len(indices), -1)
            real = torch.arange(1, ids.shape[1], device=ids.device) < counts[:, None]
            sums = sums + (rest * real).sum(-1)
        scores[:, indices] = sums.cpu().numpy()
    return scores


def _pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad rows with zeros.

    Returns:
        The padded rows, of shape (R, C), and their lengths, of shape (R,).
    """
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    counts = torch.tensor([len(row) for row in rows])
    return pad_sequence(tensors, batch_first=True).to(device), counts.to(device)
