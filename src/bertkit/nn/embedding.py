"""What a token is before any context: piece + position + segment. Devlin et al. 2019, figure 2."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.nn.dropout import Dropout


class Embedding(nn.Module):
    """The sum of three vectors of `width`, normalized, and widened. Shapes: (N,) ids -> (N, D).

    Without `positions` or `types` there are fewer. Source of the widening: Lan et al. 2020,
    section 3.1.
    """

    def __init__(
        self,
        *,
        vocab: int,
        width: int,
        hidden: int,
        positions: int,
        types: int,
        norm_eps: float,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(positions, width) if positions else None
        self.types = nn.Embedding(types, width) if types else None
        self.norm = nn.LayerNorm(width, norm_eps, bias=bias)
        self.dropout = Dropout(dropout)
        self.widen = nn.Linear(width, hidden) if width != hidden else None

    def parts(self, batch: Batch) -> dict[str, Tensor]:
        """What is added up. Shapes: (N, E) each, or (E,) where it is the same for all tokens."""
        found: dict[str, Tensor] = {"token": self.tokens(batch.ids)}
        if self.positions is not None:
            found["position"] = self.positions(batch.layout.positions)
        if self.types is not None:
            one = self.types.num_embeddings == 1  # whatever the segment (RoBERTa)
            found["segment"] = self.types.weight[0] if one else self.types(batch.types)
        return found

    def added(self, batch: Batch) -> Tensor:
        """The sum, before it is normalized. Shapes: (N, E)."""
        return functools.reduce(torch.add, self.parts(batch).values())

    def forward(self, batch: Batch) -> Tensor:
        x: Tensor = self.dropout(self.norm(self.added(batch)))
        return x if self.widen is None else self.widen(x)
