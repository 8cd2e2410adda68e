"""Multi-head attention over packed sequences. Vaswani et al. 2017, section 3.2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bertkit.batch import Packed, Padded
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.kernels import DenseAttention, Fused, Kernel, Local, Varlen
from bertkit.nn.matmul_attention import Bmm
from bertkit.nn.precision import has_amx
from bertkit.nn.rotary_positions import Rotary, rotate

BMM_MAX_LENGTH, BMM_MAX_LENGTH_AMX, BMM_MAX_LENGTH_LEARNING = 192, 96, 512
"""Up to so many queries `Bmm` is the faster kernel on CPUs even without dropout: as a rule, in bf16
with AMX (without it all), and while bf16 weights learn, where longer ones would keep too much
(multiples of BUCKET_STEP, so that the kernel of a sequence depends on its own length only)."""

LOCAL_MIN_WINDOWS = 4
"""Sequences longer than so many windows go by `Local`."""


@dataclass
class Trace:
    """A collector, handed down when someone wants to look inside; nothing is kept otherwise.

    Shapes: states[depth] (N, D), the embedding first; attention[layer][sequence] (H, Tq, Tk), rows
    sum to one; cross[layer][sequence] the same of a decoder, to its source; heads[layer] (N, H, K),
    each head's output before they are mixed; with `projections` queries[layer] (R, H, K),
    keys[layer] and values[layer] (R, Hkv, K), of which those behind the N tokens are padding. The
    last states of a pre-norm model are normalized, those before are not.
    """

    states: list[Tensor] = field(default_factory=list)
    attention: list[list[Tensor]] = field(default_factory=list)
    cross: list[list[Tensor]] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    weights: bool = True
    """Without, neither attention nor heads are collected, and nothing more is computed."""
    projections: bool = False


def attend(
    q: Tensor,
    kv: Tensor,
    context: AttentionContext,
    *,
    dropout: float = 0.0,
    kernel: Kernel | None = None,
) -> Tensor:
    """Each query's mixture of the values that it may attend to. Shapes: as of `Kernel`.

    Without a `kernel` the fastest that does not refuse is taken; the choice for a sequence depends
    on its own length alone, never on its neighbors.
    """
    if context.recall is not None:
        return context.recall(q, kv, context.scaling(q.shape[-1]))
    if kernel is not None:
        reason = kernel.refuses(q, kv, context, dropout=dropout)
        if reason:
            raise ValueError(reason)
        return kernel(q, kv, context, dropout=dropout)
    if isinstance(context.queries, Padded):
        return attend(q, kv, context, dropout=dropout, kernel=DenseAttention())
    on_cpu, window = q.device.type == "cpu", context.window
    varlen = Varlen()
    if not on_cpu and varlen.refuses(q, kv, context, dropout=dropout) is None:
        return varlen(q, kv, context, dropout=dropout)
    bounds: list[tuple[float, Kernel]] = []
    longest: Kernel = Fused()
    if on_cpu and dropout:
        longest = Bmm()
    elif on_cpu:
        bounds.append((bmm_max_length(q.dtype), Bmm()))
    if window is not None and context.bias is None:
        bounds.append((max(BMM_MAX_LENGTH, LOCAL_MIN_WINDOWS * window), longest))
        longest = Local()
    bounds.append((math.inf, longest))
    return _by_length(q, kv, context, bounds, dropout)


def bmm_max_length(dtype: torch.dtype) -> float:
    """Return the largest number of queries of a sequence for `Bmm` on a CPU without dropout.

    In bf16 without AMX and without a gradient there is no limit: its products are faster at every
    length (notes/2026-11.md).
    """
    if dtype != torch.bfloat16:
        return BMM_MAX_LENGTH
    if torch.is_grad_enabled():
        return BMM_MAX_LENGTH_LEARNING
    return BMM_MAX_LENGTH_AMX if has_amx() else math.inf


def _by_length(
    q: Tensor,
    kv: Tensor,
    context: AttentionContext,
    bounds: Sequence[tuple[float, Kernel]],
    dropout: float,
) -> Tensor:
    """Each sequence by the first kernel whose bound its queries do not exceed."""
    (limit, kernel), *longer = bounds
    lengths = context.queries.lengths
    if lengths[-1] <= limit:
        return kernel(q, kv, context, dropout=dropout)
    if lengths[0] > limit:
        return _by_length(q, kv, context, longer, dropout)
    short, long = context.split(context.queries.count_up_to(int(limit)))
    some = short.queries.total, short.keys.total
    (q, long_q), (kv, long_kv) = (
        x.split([count, x.shape[0] - count]) for x, count in zip((q, kv), some, strict=True)
    )
    return torch.cat(
        [
            kernel(q, kv, short, dropout=dropout),
            _by_length(long_q, long_kv, long, longer, dropout),
        ]
    )


def attention_weights(q: Tensor, kv: Tensor, context: AttentionContext) -> list[Tensor]:
    """The exact weights, computed in fp32. Shapes: as of `Kernel` -> one (H, Tq, Tk) a sequence."""
    weights, group = [], q.shape[1] // kv.shape[2]
    for queries, keys in context.alone:
        rows = q[queries.start : queries.start + queries.tokens].float().transpose(0, 1)
        k = kv[keys.start : keys.start + keys.tokens, 0].float().transpose(0, 1)
        scores = rows @ k.repeat_interleave(group, 0).mT * context.scaling(q.shape[-1])
        if context.bias is not None:
            scores = scores + context.bias(q, kv, queries, keys)[0].float()
        blocked = context.blocked(keys.length, q.device)
        if blocked is not None:
            scores = scores.masked_fill(blocked, -torch.inf)
        weights.append(torch.softmax(scores, -1))
    return weights


def relations(a: Tensor, b: Tensor, layout: Packed) -> list[Tensor]:
    """How each token's projection `a` meets that of each other's `b`: a bᵀ / √K, in fp32.

    Of queries and keys these are the scores before softmax; of values and values the relations of
    MiniLM. Shapes: (R, H, K) both -> one (H, T, T) a sequence.
    """
    sizes = list(layout.lengths)
    parts = (x[: layout.total].float().split(sizes) for x in (a, b))
    return [
        x.transpose(0, 1) @ y.permute(1, 2, 0) * x.shape[-1] ** -0.5
        for x, y in zip(*parts, strict=True)
    ]


class Attention(nn.Module):
    """Self-attention: queries, keys and values of H heads from one matrix, and the mixing matrix.

    Heads are D / H wide unless a `width` is given; `kv_heads` of keys and values may be fewer.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        dropout: float,
        *,
        bias: bool = True,
        kv_heads: int | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.kv_heads = heads if kv_heads is None else kv_heads
        width = hidden // heads if width is None else width
        self.qkv = nn.Linear(hidden, (heads + 2 * self.kv_heads) * width, bias)
        self.out = nn.Linear(heads * width, hidden, bias)
        self.distant: Tensor | None = None
        """Queries and keys of distances, where an engine has computed them once for all texts."""

    def forward(self, x: Tensor, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        if context.distances is not None:
            distant = self.distant
            if distant is None:
                distant = self.of_distances(context.distances.dropped())
            bias = context.distances.bias(distant, context.scaling(distant.shape[-1]))
            context = replace(context, bias=bias)
        return _mixed(self, *self.project(x, context.rotary), context, trace)

    def project(self, x: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor]:
        """Queries, and keys with values, the first two turned. Shapes: (R, D) -> (R, H, K) and
        (R, 2, Hkv, K).
        """
        both = self.heads + self.kv_heads
        qkv = self.qkv(x).unflatten(-1, (both + self.kv_heads, -1))
        if rotary is not None:
            qkv = rotate(qkv, rotary, both)
        q, kv = qkv.split([self.heads, 2 * self.kv_heads], 1)
        return q, kv.unflatten(1, (2, self.kv_heads))

    def of_distances(self, vectors: Tensor) -> Tensor:
        """Queries and keys of the vectors of distances, made as those of tokens are.

        Shapes: (P, D) -> (P, 2, H, K).
        """
        # not called as a module: who watches what layers read (calibration) is to see states alone
        made: Tensor = self.qkv.forward(vectors).unflatten(-1, (3, self.heads, -1))
        return made[:, :2]


class CrossAttention(nn.Module):
    """Queries from one stack's states, keys and values from another's, which may be as wide as
    they like. Vaswani et al. 2017, section 3.2.3.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        dropout: float,
        *,
        memory: int | None = None,
        bias: bool = True,
        width: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        width = hidden // heads if width is None else width
        self.q = nn.Linear(hidden, heads * width, bias)
        self.kv = nn.Linear(hidden if memory is None else memory, 2 * heads * width, bias)
        self.out = nn.Linear(heads * width, hidden, bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        context: AttentionContext,
        trace: Trace | None = None,
    ) -> Tensor:
        """Shapes: x (Rq, D), memory (Rk, M), or None where a cache has what is made of it ->
        (Rq, D).
        """
        q = self.q(x).unflatten(-1, (self.heads, -1))
        if memory is None:
            assert context.recall is not None
            mixed = context.recall(q, None, context.scaling(q.shape[-1]))
            out: Tensor = self.out(mixed.flatten(1))
            return out
        return _mixed(self, q, self.keys_values(memory), context, trace)

    def keys_values(self, memory: Tensor) -> Tensor:
        """Shapes: (Rk, M) -> (Rk, 2, H, K)."""
        kv: Tensor = self.kv(memory).unflatten(-1, (2, self.heads, -1))
        return kv


def _mixed(
    part: Attention | CrossAttention,
    q: Tensor,
    kv: Tensor,
    context: AttentionContext,
    trace: Trace | None,
) -> Tensor:
    """What heads attend to, mixed. Shapes: as of `Kernel` -> (Rq, D)."""
    heads = attend(q, kv, context, dropout=part.dropout if part.training else 0.0)
    if trace is not None and trace.projections:
        trace.queries.append(q)
        trace.keys.append(kv[:, 0])
        trace.values.append(kv[:, 1])
    if trace is not None and trace.weights:
        trace.attention.append(attention_weights(q, kv, context))
        trace.heads.append(heads[: context.queries.total])
    out: Tensor = part.out(heads.flatten(1))
    return out
