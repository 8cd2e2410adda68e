"""What a token is before any context: piece + position + segment. Devlin et al. 2019, figure 2."""

from __future__ import annotations

from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.nn.dropout import Dropout


class Embedding(nn.Module):
    """The sum of three vectors, normalized. Shapes: (N,) ids -> (N, D)."""

    def __init__(
        self, *, vocab: int, hidden: int, length: int, types: int, norm_eps: float, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(length, hidden)
        self.types = nn.Embedding(types, hidden)
        self.norm = nn.LayerNorm(hidden, norm_eps)
        self.dropout = Dropout(dropout)

    def forward(self, batch: Batch) -> Tensor:
        x = self.tokens(batch.ids)
        x = x + self.positions(batch.layout.positions) + self.types(batch.types)
        out: Tensor = self.dropout(self.norm(x))
        return out
