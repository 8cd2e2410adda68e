"""Dropout whose random numbers are cheap on CPUs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each number with probability `rate` and scale the others to keep the mean.

    On CPUs 64-bit random words are cut into four 16-bit draws: a third of the time of torch's own
    (docs/log.md). The rate is thus met to within 1/65536.
    """
    if rate == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    return x * _keep(x.shape, rate, x.dtype)


def _keep(shape: torch.Size, rate: float, dtype: torch.dtype) -> Tensor:
    """A factor for each number: 0 with probability `rate`, else 1 / (1 - rate)."""
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64)
    draws = words.random_(-(2**63), None).view(torch.int16)[: shape.numel()]
    kept = draws.view(shape).ge(round(rate * 65536) - 32768)
    return kept.to(dtype).mul_(1.0 / (1.0 - rate))


class Dropout(nn.Module):
    """`dropout` while training, nothing otherwise."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.rate) if self.training else x
