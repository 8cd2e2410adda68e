"""Multi-head attention over packed sequences. Vaswani et al. 2017, section 3.2.

In shapes, R is the number of rows: N tokens, and possibly rows of padding after them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bertkit.batch import Packed, Padded
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.kernels import (
    Kernel,
    dense_attention,
    fused_attention,
    is_varlen_supported,
    local_attention,
    varlen_attention,
)
from bertkit.nn.matmul_attention import bmm_attention
from bertkit.nn.precision import has_amx
from bertkit.nn.rotary_positions import Rotary, rotate

BMM_MAX_LENGTH, BMM_MAX_LENGTH_AMX, BMM_MAX_LENGTH_LEARNING = 192, 96, 512
"""Maximum number of queries in a sequence for which the kernel `bmm_attention` is used on a CPU if
there is no dropout.

The first two values are the lengths up to which `bmm_attention` is the fastest kernel in fp32, and
in bf16 with AMX. The third value applies to training in bf16, in which the kernel would need too
much memory for longer sequences. Inference in bf16 without AMX has no limit. All values are
multiples of BUCKET_STEP, so that the choice of the kernel for a sequence depends only on its own
length.
"""

LOCAL_MIN_WINDOWS = 4
"""Number of windows that a sequence must exceed for the kernel `local_attention` to be used."""


@dataclass
class Trace:
    """Collector of intermediate results of a forward pass, which are not stored otherwise.

    In a pre-norm model, only the last hidden states are normalized.

    Shapes:
        states[depth]: (N, D), hidden states. Depth 0 is the embedding.
        attention[layer][sequence]: (H, Tq, Tk), attention weights. Each row sums to 1.
        cross[layer][sequence]: (H, Tq, Tk), attention weights of a decoder's cross-attention.
        heads[layer]: (N, H, K), output of each head before the output projection.
        queries[layer]: (R, H, K), if `projections` is set. Rows after the N tokens are padding.
        keys[layer]: (R, Hkv, K), if `projections` is set.
        values[layer]: (R, Hkv, K), if `projections` is set.
    """

    states: list[Tensor] = field(default_factory=list)
    attention: list[list[Tensor]] = field(default_factory=list)
    cross: list[list[Tensor]] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    weights: bool = True
    """Whether to compute attention weights, and to collect them and the outputs of heads."""
    projections: bool = False
    """Whether to collect queries, keys, and values."""


def attend(q: Tensor, kv: Tensor, context: AttentionContext, dropout: float = 0.0) -> Tensor:
    """Compute the attention output of each query with the fastest kernel that supports the batch.

    The choice of the kernel for a sequence depends only on its own length, not on the other
    sequences of the batch.

    Args:
        q: Queries.
        kv: Keys and values.
        context: Context that defines which tokens the queries attend to.
        dropout: Dropout probability of the attention weights.

    Returns:
        The weighted sums of values.

    Shapes:
        See `Kernel`.
    """
    if context.cache is not None:
        return context.cache(q, kv, context.scaling(q.shape[-1]))
    if isinstance(context.queries, Padded):
        assert not dropout, "only exported graphs have padded batches"
        return dense_attention(q, kv, context)
    if is_varlen_supported(q, context, dropout):
        return varlen_attention(q, kv, context, dropout)
    on_cpu, window = q.device.type == "cpu", context.window
    bounds: list[tuple[float, Kernel]] = []
    longest: Kernel = fused_attention
    if on_cpu and dropout:
        longest = bmm_attention
    elif on_cpu:
        bounds.append((bmm_max_length(q.dtype), bmm_attention))
    if window is not None and context.bias is None:
        bounds.append((max(BMM_MAX_LENGTH, LOCAL_MIN_WINDOWS * window), longest))
        longest = local_attention
    bounds.append((math.inf, longest))
    return _attend_by_length(q, kv, context, bounds, dropout)


def bmm_max_length(dtype: torch.dtype) -> float:
    """Return the maximum number of queries in a sequence for `bmm_attention` on a CPU.

    This applies if there is no dropout. In bf16 without AMX and without a gradient, there is no
    limit, because `bmm_attention` is faster at every length (notes/2026-11.md).
    """
    if dtype != torch.bfloat16:
        return BMM_MAX_LENGTH
    if torch.is_grad_enabled():
        return BMM_MAX_LENGTH_LEARNING
    return BMM_MAX_LENGTH_AMX if has_amx() else math.inf


def _attend_by_length(
    q: Tensor,
    kv: Tensor,
    context: AttentionContext,
    bounds: Sequence[tuple[float, Kernel]],
    dropout: float,
) -> Tensor:
    """Compute each sequence with the first kernel whose maximum number of queries is sufficient."""
    (limit, kernel), *longer = bounds
    lengths = context.queries.lengths
    if lengths[-1] <= limit:
        return kernel(q, kv, context, dropout)
    if lengths[0] > limit:
        return _attend_by_length(q, kv, context, longer, dropout)
    short, long = context.split(context.queries.count_up_to(int(limit)))
    counts = short.queries.total, short.keys.total
    (q, long_q), (kv, long_kv) = (
        x.split([count, x.shape[0] - count]) for x, count in zip((q, kv), counts, strict=True)
    )
    return torch.cat(
        [kernel(q, kv, short, dropout), _attend_by_length(long_q, long_kv, long, longer, dropout)]
    )


def attention_weights(q: Tensor, kv: Tensor, context: AttentionContext) -> list[Tensor]:
    """Compute the attention weights exactly, in fp32.

    Returns:
        One tensor of shape (H, Tq, Tk) per sequence.

    Shapes:
        See `Kernel`.
    """
    weights, group = [], q.shape[1] // kv.shape[2]
    for queries, keys in context.sequence_buckets:
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
    """Compute the scaled dot products a bᵀ / √K of all pairs of tokens of a sequence, in fp32.

    If `a` are queries and `b` are keys, these are the attention logits. If both are values, these
    are the value relations of MiniLM before the softmax.

    Args:
        a: First projection of each token: queries or values.
        b: Second projection of each token: keys or values.
        layout: Layout of the sequences.

    Returns:
        One tensor of shape (H, T, T) per sequence.

    Shapes:
        a, b: (R, H, K).
    """
    sizes = list(layout.lengths)
    parts = (x[: layout.total].float().split(sizes) for x in (a, b))
    return [
        x.transpose(0, 1) @ y.permute(1, 2, 0) * x.shape[-1] ** -0.5
        for x, y in zip(*parts, strict=True)
    ]


class Attention(nn.Module):
    """Multi-head self-attention. One linear layer computes the queries, keys, and values.

    Args:
        hidden: Hidden size D.
        heads: Number of query heads H.
        dropout: Dropout probability of the attention weights.
        bias: Whether the linear layers have biases.
        kv_heads: Number of heads of keys and values. Default: `heads`.
        width: Head dimension. Default: D / H.
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
        self.distance_projections: Tensor | None = None
        """Result of `project_distances`, if `Engine` has computed it in advance."""

    def forward(self, x: Tensor, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        if context.distances is not None:
            projected = self.distance_projections
            if projected is None:
                projected = self.project_distances(context.distances.apply_dropout())
            bias = context.distances.bias(projected, context.scaling(projected.shape[-1]))
            context = replace(context, bias=bias)
        return _attend_and_project(self, *self.project(x, context.rotary), context, trace)

    def project(self, x: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor]:
        """Project hidden states to queries, keys, and values, and apply rotary embeddings.

        Returns:
            The queries, and the stacked keys and values.

        Shapes:
            x: (R, D).
            returns: (R, H, K) and (R, 2, Hkv, K).
        """
        rotated = self.heads + self.kv_heads
        qkv = self.qkv(x).unflatten(-1, (rotated + self.kv_heads, -1))
        if rotary is not None:
            qkv = rotate(qkv, rotary, rotated)
        q, kv = qkv.split([self.heads, 2 * self.kv_heads], 1)
        return q, kv.unflatten(1, (2, self.kv_heads))

    def project_distances(self, vectors: Tensor) -> Tensor:
        """Project distance vectors to queries and keys by the weights that also project tokens.

        Shapes:
            vectors: (P, D).
            returns: (P, 2, H, K).
        """
        # Calling `forward` directly skips hooks, so that int8 calibration, which uses a hook,
        # records only hidden states.
        qkv: Tensor = self.qkv.forward(vectors).unflatten(-1, (3, self.heads, -1))
        return qkv[:, :2]


class CrossAttention(nn.Module):
    """Attention of a decoder to the hidden states of an encoder, whose hidden size may differ.

    Source: Vaswani et al. 2017, section 3.2.3.

    Args:
        hidden: Hidden size D of the decoder.
        heads: Number of heads H.
        dropout: Dropout probability of the attention weights.
        memory: Hidden size M of the encoder. Default: `hidden`.
        bias: Whether the linear layers have biases.
        width: Head dimension. Default: D / H.
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
        """Compute the attention output.

        `memory` contains the encoder's hidden states. It is None if a cache contains the keys and
        values.

        Shapes:
            x: (Rq, D).
            memory: (Rk, M).
            returns: (Rq, D).
        """
        q = self.q(x).unflatten(-1, (self.heads, -1))
        if memory is None:
            assert context.cache is not None
            heads = context.cache(q, None, context.scaling(q.shape[-1]))
            out: Tensor = self.out(heads.flatten(1))
            return out
        return _attend_and_project(self, q, self.keys_values(memory), context, trace)

    def keys_values(self, memory: Tensor) -> Tensor:
        """Project the encoder's hidden states to keys and values.

        Shapes:
            (Rk, M) -> (Rk, 2, H, K).
        """
        kv: Tensor = self.kv(memory).unflatten(-1, (2, self.heads, -1))
        return kv


def _attend_and_project(
    part: Attention | CrossAttention,
    q: Tensor,
    kv: Tensor,
    context: AttentionContext,
    trace: Trace | None,
) -> Tensor:
    """Compute attention and the output projection, and add the results to the trace."""
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
