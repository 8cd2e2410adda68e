"""One layer of the encoder: attention, then feed-forward, each added and normalized."""

from __future__ import annotations

from torch import Tensor, nn

from bertkit.batch import Packed
from bertkit.nn.attention import Attention, Trace
from bertkit.nn.dropout import Dropout
from bertkit.nn.feedforward import FeedForward


class Block(nn.Module):
    """A post-norm layer: LayerNorm(x + sublayer(x)), twice. Vaswani et al. 2017, figure 1."""

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        intermediate: int,
        activation: str,
        norm_eps: float,
        dropout: float,
        attention_dropout: float,
    ) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads, attention_dropout)
        self.attention_norm = nn.LayerNorm(hidden, norm_eps)
        self.feedforward = FeedForward(hidden, intermediate, activation)
        self.feedforward_norm = nn.LayerNorm(hidden, norm_eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, layout: Packed, trace: Trace | None = None) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, layout, trace)))
        x = self.feedforward_norm(x + self.dropout(self.feedforward(x)))
        return x
