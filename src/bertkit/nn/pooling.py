"""Pooling of token embeddings to one vector per sequence. Shapes: (N, D) -> (S, D)."""

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
    """Return the embedding of each sequence's first token ([CLS])."""
    return states.index_select(0, batch.layout.first)


def mean(states: Tensor, batch: Batch) -> Tensor:
    """Return the mean token embedding of each sequence, including special tokens, in fp32."""
    return batch.layout.segment_sum(states) / batch.layout.counts[:, None]


def last(states: Tensor, batch: Batch) -> Tensor:
    """Return the embedding of each sequence's last token."""
    return states.index_select(0, batch.layout.first + batch.layout.counts - 1)


def largest(states: Tensor, batch: Batch) -> Tensor:
    """Return the maximum of each dimension over the tokens of a sequence, in fp32."""
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
    """Linear layer and activation for pooled vectors. Shapes: (S, D) -> (S, W)."""

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
    """Settings and layers that convert token embeddings to text embeddings.

    Shapes:
        (N, D) -> (S, D), or (S, W) with a dense layer.
    """

    mode: Mode = "mean"
    normalize: bool = False
    """Whether embeddings have to be normalized. The caller normalizes them, after it has averaged
    the windows of a text.
    """
    dense: Dense | None = None
    prompts: Prompts = field(default_factory=Prompts)
    """Prompts to prepend to texts. The caller prepends them when it encodes a text."""
    similarity: str = "cosine"
    """Name of the embeddings' similarity function, as in sentence-transformers."""
    lowercase: bool = False
    """Whether to lowercase texts before tokenization (`do_lower_case`)."""

    def __call__(self, states: Tensor, batch: Batch) -> Tensor:
        pooled = POOLINGS[self.mode](states, batch)
        return pooled if self.dense is None else self.dense(pooled)

    def reads(self, hidden: int) -> bool:
        """Return whether the pooling accepts this hidden size. Only a dense layer restricts it."""
        return self.dense is None or self.dense.linear.in_features == hidden

    def width(self, hidden: int) -> int:
        """Return the size of the embeddings for this hidden size."""
        return hidden if self.dense is None else self.dense.linear.out_features


class Pool(nn.Module):
    """Head of an embedding model, which applies a pooling. Shapes: (N, D) -> (S, D or W)."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling, self.dense = pooling, pooling.dense

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        return self.pooling(states, batch)
