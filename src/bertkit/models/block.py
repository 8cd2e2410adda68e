"""One layer of a Transformer: attention, then feed-forward, each added and normalized."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from bertkit.models.config import NormSettings, TransformerConfig
from bertkit.nn.attention import Attention, CrossAttention, Trace
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.dropout import Dropout
from bertkit.nn.feedforward import FeedForward
from bertkit.nn.norm import LayerNorm, RMSNorm


@dataclass(frozen=True)
class Memory:
    """The states of an encoder, which a decoder attends to. Shapes: states (Nk, D), or None where
    a cache has their keys and values."""

    states: Tensor | None
    context: AttentionContext


class Block(nn.Module):
    """A post-norm layer: norm(x + sublayer(x)), twice. Vaswani et al. 2017, figure 1.

    A pre-norm layer is x + sublayer(norm(x)), twice: Xiong et al. 2020, figure 1b. Between the
    two, a decoder's layer has a third sublayer, attention to the states of its encoder.
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
        self.cross = None
        if attention.cross:
            self.cross = CrossAttention(
                config.hidden,
                config.heads,
                config.attention_dropout,
                bias=attention.bias,
                width=attention.width,
            )
            self.cross_norm = norm_of(norm, config.hidden)
        self.feedforward = FeedForward(
            config.hidden,
            config.intermediate,
            feedforward.activation,
            gated=feedforward.gated,
            bias=feedforward.bias,
            up_bias=feedforward.up_bias,
            dropout=config.rate("feedforward.dropout"),
        )
        self.feedforward_norm = norm_of(norm, config.hidden)
        rate = attention.output_dropout
        self.attention_output_dropout = Dropout(config.dropout if rate is None else rate)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        trace: Trace | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        mixed = self.attention(self.attention_norm(x) if self.pre else x, context, trace)
        if self.cross is None:
            return self.after(x, mixed)
        x = self.joined(x, mixed)
        recalled = self._recall(self.cross_norm(x) if self.pre else x, memory, trace)
        x = x + self.attention_output_dropout(recalled)
        return self.fed(x if self.pre else self.cross_norm(x))

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What follows attention, where no other attention does: of tensors alone, so that it can
        be compiled. Shapes: (R, D) all."""
        return self.fed(self.joined(x, mixed))

    def joined(self, x: Tensor, mixed: Tensor) -> Tensor:
        """States with what attention mixed."""
        x = x + self.attention_output_dropout(mixed)
        normed: Tensor = x if self.pre else self.attention_norm(x)
        return normed

    def fed(self, x: Tensor) -> Tensor:
        """States with what the feed-forward network makes of them."""
        x = x + self.dropout(self.feedforward(self.feedforward_norm(x) if self.pre else x))
        normed: Tensor = x if self.pre else self.feedforward_norm(x)
        return normed

    def steps(self, x: Tensor, heads: Tensor) -> dict[str, Tensor]:
        """What an encoder's layer makes of its states, by name and in order; the last one is its
        output. Shapes: x (N, D), its heads (N, H, K) of a trace."""
        steps = {"state": x}
        if self.pre:
            steps["norm"] = self.attention_norm(x)
        steps["attention"] = self.attention.out(heads.flatten(1))
        steps["sum"] = x + steps["attention"]
        if not self.pre:
            steps["norm"] = self.attention_norm(steps["sum"])
        into = self.feedforward_norm(steps["sum"]) if self.pre else steps["norm"]
        if self.pre:
            steps["second norm"] = into
        steps["inner"] = self.feedforward.inner(into)
        steps["feed-forward"] = self.feedforward.down(steps["inner"])
        steps["second sum"] = (steps["sum"] if self.pre else into) + steps["feed-forward"]
        if not self.pre:
            steps["second norm"] = self.feedforward_norm(steps["second sum"])
        return steps

    def _recall(self, x: Tensor, memory: Memory | None, trace: Trace | None) -> Tensor:
        assert self.cross is not None
        assert memory is not None
        own = Trace() if trace is not None and trace.weights else None
        mixed: Tensor = self.cross(x, memory.states, memory.context, own)
        if trace is not None and own is not None:
            trace.cross += own.attention
        return mixed


def norm_of(norm: NormSettings, width: int) -> nn.Module:
    """A norm of this width, of the kind that the settings name."""
    if norm.kind == "rms":
        return RMSNorm(width, norm.eps)
    return LayerNorm(width, norm.eps, bias=norm.bias)
