"""Transformer layer: attention and feed-forward sublayers with residual connections and norms."""

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
    """Encoder states that a decoder layer attends to.

    Shapes:
        states: (Nk, D), or None if a cache contains their keys and values.
    """

    states: Tensor | None
    context: AttentionContext


class Block(nn.Module):
    """Transformer layer of an encoder or decoder.

    The sublayers are self-attention, cross-attention (if `attention.cross` is set), and the
    feed-forward network. With each sublayer, a post-norm layer computes norm(x + sublayer(x)), and
    a pre-norm layer computes x + sublayer(norm(x)).

    In shapes, R is the number of rows: N tokens, and possibly rows of padding after them.

    Args:
        config: Settings of the encoder or decoder.
        first: Whether this is the first layer. It has no attention norm if `norm.first` is false.

    Source: Vaswani et al. 2017, figure 1 (post-norm); Xiong et al. 2020, figure 1b (pre-norm).
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
        has_norm = norm.first or not first
        self.attention_norm = norm_of(norm, config.hidden) if has_norm else nn.Identity()
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
        """Compute the output of the layer. Shapes: (R, D) -> (R, D)."""
        attended = self.attention(self.attention_norm(x) if self.pre else x, context, trace)
        if self.cross is None:
            return self.after(x, attended)
        x = self.add_attention(x, attended)
        attended = self._cross_attention(self.cross_norm(x) if self.pre else x, memory, trace)
        x = x + self.attention_output_dropout(attended)
        return self.add_feedforward(x if self.pre else self.cross_norm(x))

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the rest of a layer without cross-attention from the output of self-attention.

        All arguments are tensors, so that `torch.compile` can compile this method.

        Args:
            x: Input of the layer.
            attended: Output of self-attention.

        Returns:
            Output of the layer.

        Shapes:
            x, attended: (R, D); returns (R, D).
        """
        return self.add_feedforward(self.add_attention(x, attended))

    def add_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the output of self-attention to the layer's input. Shapes: (R, D) -> (R, D)."""
        x = x + self.attention_output_dropout(attended)
        normed: Tensor = x if self.pre else self.attention_norm(x)
        return normed

    def add_feedforward(self, x: Tensor) -> Tensor:
        """Compute the feed-forward sublayer and add it to its input. Shapes: (R, D) -> (R, D)."""
        x = x + self.dropout(self.feedforward(self.feedforward_norm(x) if self.pre else x))
        normed: Tensor = x if self.pre else self.feedforward_norm(x)
        return normed

    def steps(self, x: Tensor, heads: Tensor) -> dict[str, Tensor]:
        """Compute the intermediate states of an encoder layer.

        Args:
            x: Input of the layer.
            heads: Output of each attention head, from a `Trace`.

        Returns:
            States by name, in the order in which they are computed. The last one is the output of
            the layer.

        Shapes:
            x: (N, D); heads: (N, H, K).
        """
        steps = {"state": x}
        if self.pre:
            steps["norm"] = self.attention_norm(x)
        steps["attention"] = self.attention.out(heads.flatten(1))
        steps["sum"] = x + steps["attention"]
        if not self.pre:
            steps["norm"] = self.attention_norm(steps["sum"])
        normed = self.feedforward_norm(steps["sum"]) if self.pre else steps["norm"]
        if self.pre:
            steps["second norm"] = normed
        steps["inner"] = self.feedforward.inner(normed)
        steps["feed-forward"] = self.feedforward.down(steps["inner"])
        steps["second sum"] = (steps["sum"] if self.pre else normed) + steps["feed-forward"]
        if not self.pre:
            steps["second norm"] = self.feedforward_norm(steps["second sum"])
        return steps

    def _cross_attention(self, x: Tensor, memory: Memory | None, trace: Trace | None) -> Tensor:
        assert self.cross is not None
        assert memory is not None
        cross_trace = Trace() if trace is not None and trace.weights else None
        attended: Tensor = self.cross(x, memory.states, memory.context, cross_trace)
        if trace is not None and cross_trace is not None:
            trace.cross += cross_trace.attention
        return attended


def norm_of(norm: NormSettings, width: int) -> nn.Module:
    """Build a LayerNorm or an RMSNorm for vectors of the given size."""
    if norm.kind == "rms":
        return RMSNorm(width, norm.eps)
    return LayerNorm(width, norm.eps, bias=norm.bias)
