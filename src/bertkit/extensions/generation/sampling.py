"""Sampling of tokens with temperature, top-k, top-p, and min-p."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.stepper import Request

LOWEST_TEMPERATURE = 1e-30
"""Lowest temperature to divide logits by. With a lower one, they would become infinite."""


def seed_of(request: Request, seed: int) -> int:
    """Derive the random seed of a request from its content and the seed of the call."""
    content = f"{seed} {request.number} {request.prompt.tolist()}"
    if request.source is not None:
        content += f" {request.source.tolist()}"
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "little")


def uniform(seed: int, position: int) -> float:
    """Return a random number in [0, 1) that depends only on the seed and the position.

    Source: Salmon et al. 2011 (Philox).
    """
    bits = np.random.Philox(key=np.array([seed, position], dtype=np.uint64)).random_raw()
    return float(int(bits) >> 11) * 2.0**-53


def sample(scores: Tensor, uniform: Tensor, decoding: Decoding) -> Tensor:
    """Sample one token for each row of logits.

    Args:
        scores: The logits.
        uniform: A random number in [0, 1) for each row.
        decoding: The temperature, top-k, top-p, and min-p.

    Returns:
        The ids of the sampled tokens.

    Shapes:
        scores: (R, V); uniform: (R,); returns (R,).
    """
    scores, order = scores / max(decoding.temperature, LOWEST_TEMPERATURE), None
    if decoding.top_k is not None or decoding.top_p < 1:
        scores, order = scores.topk(min(decoding.top_k or scores.shape[1], scores.shape[1]))
    p = torch.softmax(scores.double(), -1)
    if decoding.min_p:
        p = p.where(p >= decoding.min_p * p.amax(-1, keepdim=True), 0.0)
    # The cumulative probability before the most probable token is 0, so top-p never removes it.
    if decoding.top_p < 1:
        p = p.where(p.cumsum(-1) - p < decoding.top_p, 0.0)
    sums = p.cumsum(-1)
    target = uniform.to(sums.device)[:, None] * sums[:, -1:]
    index = torch.searchsorted(sums, target, right=True)
    # Because of rounding, the index may be after the last token with nonzero probability.
    last = (p > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    index = torch.minimum(index, last)
    tokens = index if order is None else order.gather(1, index)
    return tokens[:, 0]
