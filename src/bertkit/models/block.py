"""One layer of a Transformer: attention, then feed-forward, each added and normalized."""

from __future__ import annotations

from torch import Tensor, nn

from bertkit.models.config import NormSettings, TransformerConfig
from bertkit.nn.attention import Attention, Trace
from bertkit.nn.context import AttentionContext
from bertkit.nn.dropout import Dropout
from bertkit.nn.feedforward import FeedForward
from bertkit.nn.norm import LayerNorm, RMSNorm


class Block(nn.Module):
    """A post-norm layer: norm(x + sublayer(x)), twice. Vaswani et al. 2017, figure 1.

    A pre-norm layer is x + sublayer(norm(x)), twice: Xiong et al. 2020, figure 1b.
    """

    def __init__(self, config: TransformerConfig, *, first: bool) -> None:
        super().__init__()
        attention, feedforward, norm = config.attention, config.feedforward, config.norm
        self.pre = norm.place == "pre"
        self.attention = Attention(
            config.hidden,
            config.heads,
            config.attention_dropout,
            bias=attention.bias,
            kv_heads=attention.kv_heads,
            width=attention.width,
        )
        skipped = first and not norm.first
        self.attention_norm = nn.Identity() if skipped else norm_of(norm, config.hidden)
        self.feedforward = FeedForward(
            config.hidden,
            config.intermediate,
            feedforward.activation,
            gated=feedforward.gated,
            bias=feedforward.bias,
        )
        self.feedforward_norm = norm_of(norm, config.hidden)
        rate = attention.output_dropout
        self.attention_output_dropout = Dropout(config.dropout if rate is None else rate)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        if self.pre:
            mixed = self.attention(self.attention_norm(x), context, trace)
            x = x + self.attention_output_dropout(mixed)
            x = x + self.dropout(self.feedforward(self.feedforward_norm(x)))
            return x
        mixed = self.attention(x, context, trace)
        x = self.attention_norm(x + self.attention_output_dropout(mixed))
        x = self.feedforward_norm(x + self.dropout(self.feedforward(x)))
        return x


def norm_of(norm: NormSettings, width: int) -> nn.Module:
    """A norm of this width, of the kind that the settings name."""
    if norm.kind == "rms":
        return RMSNorm(width, norm.eps)
    return LayerNorm(width, norm.eps, bias=norm.bias)
