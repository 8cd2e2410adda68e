"""Multi-head self-attention over packed sequences. Vaswani et al. 2017, section 3.2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bertkit.batch import Packed
from bertkit.nn.kernels import Bmm, Fused, Kernel, Local, Varlen, beyond
from bertkit.nn.rotary import Turn, rotate

SHORT = 192
"""Up to this many tokens `Bmm` is the faster kernel on CPUs even without dropout (a multiple of
RUN_STEP, so that the kernel of a sequence depends on its own length only)."""


FAR = 4
"""Sequences longer than so many windows go by `Local`."""


@dataclass
class Trace:
    """A collector, handed down when someone wants to look inside; nothing is kept otherwise.

    Shapes: states[depth] (N, D), the embedding first; attention[layer][sequence] (H, T, T), rows
    sum to one; heads[layer] (N, H, K), each head's output before they are mixed; with
    `projections` qkv[layer] (R, 3, H, K), of which those behind the N tokens are padding. The last
    states of a pre-norm model are normalized, those before are not.
    """

    states: list[Tensor] = field(default_factory=list)
    attention: list[list[Tensor]] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    qkv: list[Tensor] = field(default_factory=list)
    weights: bool = True
    """Without, neither attention nor heads are collected, and nothing more is computed."""
    projections: bool = False


@dataclass(frozen=True)
class Sight:
    """What the tokens of a layer see, and from where."""

    layout: Packed
    window: int | None = None
    """How many tokens to each side; None is the whole sequence."""
    turn: Turn | None = None
    """The angles of rotary positions."""


def attend(
    qkv: Tensor,
    layout: Packed,
    *,
    window: int | None = None,
    dropout: float = 0.0,
    kernel: Kernel | None = None,
) -> Tensor:
    """Each token's mixture of the tokens of its own sequence, or of those within `window`.

    Shapes: as of `Kernel`.

    Without a `kernel` the fastest that does not refuse is taken; the choice for a sequence depends
    on its own length alone, never on its neighbors.
    """
    if kernel is not None:
        reason = kernel.refuses(qkv, layout, window=window, dropout=dropout)
        if reason:
            raise ValueError(reason)
        return kernel(qkv, layout, window=window, dropout=dropout)
    varlen = Varlen()
    if varlen.refuses(qkv, layout, dropout=dropout) is None:
        return varlen(qkv, layout, window=window, dropout=dropout)
    bounds: list[tuple[float, Kernel]] = []
    longest: Kernel = Fused()
    if qkv.device.type == "cpu" and dropout:
        longest = Bmm()
    elif qkv.device.type == "cpu":
        bounds.append((SHORT, Bmm()))
    if window is not None:
        bounds.append((max(SHORT, FAR * window), longest))
        longest = Local()
    bounds.append((math.inf, longest))
    return _by_length(qkv, layout, bounds, window=window, dropout=dropout)


def _by_length(
    qkv: Tensor,
    layout: Packed,
    bounds: Sequence[tuple[float, Kernel]],
    *,
    window: int | None,
    dropout: float,
) -> Tensor:
    """Each sequence by the first kernel whose bound it does not exceed."""
    (limit, kernel), *longer = bounds
    if layout.lengths[-1] <= limit:
        return kernel(qkv, layout, window=window, dropout=dropout)
    if layout.lengths[0] > limit:
        return _by_length(qkv, layout, longer, window=window, dropout=dropout)
    short, long = layout.split(int(limit))
    first, rest = qkv.split([short.total, qkv.shape[0] - short.total])
    return torch.cat(
        [
            kernel(first, short, window=window, dropout=dropout),
            _by_length(rest, long, longer, window=window, dropout=dropout),
        ]
    )


def attention_weights(qkv: Tensor, layout: Packed, window: int | None = None) -> list[Tensor]:
    """The exact weights, one (H, T, T) a sequence: softmax(q kᵀ / √K), computed in fp32."""
    found = []
    for scores in relations(qkv, layout, 0, 1):
        hidden = beyond(window, scores.shape[-1], scores.device)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        found.append(torch.softmax(scores, -1))
    return found


def relations(qkv: Tensor, layout: Packed, a: int, b: int) -> list[Tensor]:
    """How each token's projection `a` meets that of each other's `b`: a bᵀ / √K, in fp32.

    Of queries (0) and keys (1) these are the scores before softmax; of values (2) and values the
    relations of MiniLM. Shapes: one (H, T, T) a sequence.
    """
    found = []
    for part in qkv[: layout.total].float().split(list(layout.lengths)):
        parts = part.permute(1, 2, 0, 3)  # (3, H, T, K)
        found.append(parts[a] @ parts[b].transpose(1, 2) * parts.shape[-1] ** -0.5)
    return found


class Attention(nn.Module):
    """Queries, keys and values of H heads from one matrix, attention, and the mixing matrix."""

    def __init__(self, hidden: int, heads: int, dropout: float, *, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(hidden, 3 * hidden, bias)
        self.out = nn.Linear(hidden, hidden, bias)

    def forward(self, x: Tensor, sight: Sight, trace: Trace | None = None) -> Tensor:
        layout, window = sight.layout, sight.window
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        if sight.turn is not None:
            qkv = rotate(qkv, sight.turn)
        rate = self.dropout if self.training else 0.0
        mixed = attend(qkv, layout, window=window, dropout=rate)
        if trace is not None and trace.projections:
            trace.qkv.append(qkv)
        if trace is not None and trace.weights:
            trace.attention.append(attention_weights(qkv, layout, window))
            trace.heads.append(mixed[: layout.total])
        out: Tensor = self.out(mixed.flatten(1))
        return out
