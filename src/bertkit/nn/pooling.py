"""One vector for a sequence from the states of its tokens. Shapes: (N, D) -> (S, D)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.text.prompts import Prompts

Mode = Literal["mean", "cls", "max"]


def first(states: Tensor, batch: Batch) -> Tensor:
    """The state of each sequence's [CLS]."""
    return states.index_select(0, batch.layout.first)


def mean(states: Tensor, batch: Batch) -> Tensor:
    """The mean state of each sequence, its special tokens included, in fp32."""
    return batch.layout.segment_sum(states) / batch.layout.counts[:, None]


def last(states: Tensor, batch: Batch) -> Tensor:
    """The state of each sequence's last token, which has seen all others where they are causal."""
    return states.index_select(0, batch.layout.first + batch.layout.counts - 1)


def largest(states: Tensor, batch: Batch) -> Tensor:
    """The largest of each number over the tokens of a sequence, in fp32."""
    return batch.layout.segment_max(states)


POOLINGS: Mapping[str, Callable[[Tensor, Batch], Tensor]] = {
    "cls": first,
    "mean": mean,
    "max": largest,
}

Activation = Literal["tanh", "gelu", "relu", "none"]

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "none": lambda x: x,
}


class Dense(nn.Module):
    """A linear layer over pooled vectors, and an activation. Shapes: (S, D) -> (S, W)."""

    def __init__(
        self, hidden: int, width: int, activation: Activation = "tanh", *, bias: bool = True
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, width, bias=bias)
        self.activation = activation

    def forward(self, pooled: Tensor) -> Tensor:
        projected = self.linear(pooled.to(self.linear.weight.dtype))
        return ACTIVATIONS[self.activation](projected.float())


@dataclass(frozen=True)
class Pooling:
    """How a text's vector is made from the states of its tokens. Shapes: (N, D) -> (S, D or W)."""

    mode: Mode = "mean"
    normalize: bool = False
    """Left to the caller, who may average the windows of a text before."""
    dense: Dense | None = None
    prompts: Prompts = field(default_factory=Prompts)
    """What stands before a text; left to the caller, who encodes it."""
    similarity: str = "cosine"
    """By what vectors are compared, as sentence-transformers names it."""
    lowercase: bool = False
    """Whether texts are lowercased before they are tokenized (`do_lower_case`)."""

    def __call__(self, states: Tensor, batch: Batch) -> Tensor:
        pooled = POOLINGS[self.mode](states, batch)
        return pooled if self.dense is None else self.dense(pooled)

    def reads(self, hidden: int) -> bool:
        """Whether a model of this width is what its dense layer expects."""
        return self.dense is None or self.dense.linear.in_features == hidden

    def width(self, hidden: int) -> int:
        """Numbers of a vector, of a model of this width."""
        return hidden if self.dense is None else self.dense.linear.out_features


class Pool(nn.Module):
    """The head of a model that makes vectors. Shapes: (N, D) -> (S, D or W)."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling, self.dense = pooling, pooling.dense

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        return self.pooling(states, batch)
