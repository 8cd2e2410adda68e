"""Multi-head self-attention over packed sequences. Vaswani et al. 2017, section 3.2."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bertkit.batch import Packed
from bertkit.nn.kernels import Bmm, Fused, Kernel, Varlen

SHORT = 192
"""Up to this many tokens `Bmm` is the faster kernel on CPUs (a multiple of RUN_STEP, so that the
kernel of a sequence depends on its own length only)."""


@dataclass
class Trace:
    """A collector, handed down when someone wants to look inside; nothing is kept otherwise.

    Shapes: states[depth] (N, D), the embedding first; attention[layer][sequence] (H, T, T), rows
    sum to one; heads[layer] (N, H, K), each head's output before they are mixed.
    """

    states: list[Tensor] = field(default_factory=list)
    attention: list[list[Tensor]] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    weights: bool = True
    """Without, only states are collected, which costs nothing more."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Packed,
    *,
    dropout: float = 0.0,
    kernel: Kernel | None = None,
) -> Tensor:
    """Each token's mixture of the tokens of its own sequence. Shapes: all (N, H, K).

    Without a `kernel` the fastest that does not refuse is taken; the choice for a sequence depends
    on its own length alone, never on its neighbors.
    """
    if kernel is not None:
        reason = kernel.refuses(q, layout, dropout=dropout)
        if reason:
            raise ValueError(reason)
        return kernel(q, k, v, layout, dropout=dropout)
    varlen = Varlen()
    if varlen.refuses(q, layout, dropout=dropout) is None:
        return varlen(q, k, v, layout, dropout=dropout)
    if q.device.type != "cpu" or layout.lengths[0] > SHORT:
        return Fused()(q, k, v, layout, dropout=dropout)
    if layout.lengths[-1] <= SHORT:
        return Bmm()(q, k, v, layout, dropout=dropout)
    short, long = layout.split(SHORT)
    at = short.total
    return torch.cat(
        [
            Bmm()(q[:at], k[:at], v[:at], short, dropout=dropout),
            Fused()(q[at:], k[at:], v[at:], long, dropout=dropout),
        ]
    )


def attention_weights(q: Tensor, k: Tensor, layout: Packed) -> list[Tensor]:
    """The exact weights, one (H, T, T) a sequence: softmax(q kᵀ / √K), computed in fp32."""
    lengths = list(layout.lengths)
    return [
        torch.softmax(a @ b.transpose(-1, -2) * a.shape[-1] ** -0.5, -1)
        for a, b in zip(
            q.float().transpose(0, 1).split(lengths, 1),
            k.float().transpose(0, 1).split(lengths, 1),
            strict=True,
        )
    ]


class Attention(nn.Module):
    """Queries, keys and values of H heads from one matrix, attention, and the mixing matrix."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, layout: Packed, trace: Trace | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)  # each (N, H, K)
        mixed = attend(q, k, v, layout, dropout=self.dropout if self.training else 0.0)
        if trace is not None and trace.weights:
            trace.attention.append(attention_weights(q, k, layout))
            trace.heads.append(mixed)
        out: Tensor = self.out(mixed.flatten(1))
        return out
