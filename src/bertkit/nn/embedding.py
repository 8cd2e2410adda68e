"""What a token is before any context: piece + position + segment. Devlin et al. 2019, figure 2."""

from __future__ import annotations

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

    def forward(self, batch: Batch) -> Tensor:
        x: Tensor = self.tokens(batch.ids)
        if self.positions is not None:
            x = x + self.positions(batch.layout.positions)
        if self.types is not None:
            one = self.types.num_embeddings == 1  # whatever the segment (RoBERTa)
            x = x + (self.types.weight[0] if one else self.types(batch.types))
        x = self.dropout(self.norm(x))
        return x if self.widen is None else self.widen(x)
