"""One vector for a sequence from the states of its tokens. Shapes: (N, D) -> (S, D)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertkit.batch import Batch

Mode = Literal["mean", "cls", "max"]


def first(states: Tensor, batch: Batch) -> Tensor:
    """The state of each sequence's [CLS]."""
    return states.index_select(0, batch.layout.first)


def mean(states: Tensor, batch: Batch) -> Tensor:
    """The mean state of each sequence, its special tokens included, in fp32."""
    layout = batch.layout
    sums = torch.zeros(len(layout.lengths), states.shape[1], device=states.device)
    sums.index_add_(0, layout.owner, states.float())
    return sums / layout.starts.diff()[:, None]


def largest(states: Tensor, batch: Batch) -> Tensor:
    """The largest of each number over the tokens of a sequence, in fp32."""
    layout, numbers = batch.layout, states.float()
    lowest = torch.full((len(layout.lengths), states.shape[1]), -torch.inf, device=states.device)
    return lowest.scatter_reduce(0, layout.owner[:, None].expand_as(numbers), numbers, "amax")


@dataclass(frozen=True)
class Pooling:
    """How a text's vector is made from the states of its tokens."""

    mode: Mode = "mean"
    normalize: bool = False


POOLINGS: Mapping[str, Callable[[Tensor, Batch], Tensor]] = {
    "cls": first,
    "mean": mean,
    "max": largest,
}
