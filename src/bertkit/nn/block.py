"""One layer of the encoder: attention, then feed-forward, each added and normalized."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from bertkit.nn.attention import Attention, Trace
from bertkit.nn.context import AttentionContext
from bertkit.nn.dropout import Dropout
from bertkit.nn.feedforward import FeedForward
from bertkit.nn.norm import LayerNorm


class Block(nn.Module):
    """A post-norm layer: LayerNorm(x + sublayer(x)), twice. Vaswani et al. 2017, figure 1.

    A pre-norm layer is x + sublayer(LayerNorm(x)), twice: Xiong et al. 2020, figure 1b. The
    `first` reads the embedding, which is normalized already.
    """

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        intermediate: int,
        activation: str,
        gated: bool,
        norm: Literal["post", "pre"],
        norm_eps: float,
        bias: bool,
        dropout: float,
        attention_dropout: float,
        attention_output_dropout: float,
        first: bool,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.attention = Attention(hidden, heads, attention_dropout, bias=bias)
        self.attention_norm = (
            nn.Identity() if norm == "pre" and first else LayerNorm(hidden, norm_eps, bias=bias)
        )
        self.feedforward = FeedForward(hidden, intermediate, activation, gated=gated, bias=bias)
        self.feedforward_norm = LayerNorm(hidden, norm_eps, bias=bias)
        self.attention_output_dropout = Dropout(attention_output_dropout)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        if self.norm == "pre":
            mixed = self.attention(self.attention_norm(x), context, trace)
            x = x + self.attention_output_dropout(mixed)
            x = x + self.dropout(self.feedforward(self.feedforward_norm(x)))
            return x
        mixed = self.attention(x, context, trace)
        x = self.attention_norm(x + self.attention_output_dropout(mixed))
        x = self.feedforward_norm(x + self.dropout(self.feedforward(x)))
        return x
