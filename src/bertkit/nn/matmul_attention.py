"""Attention by batched matrix products, the kernel of CPUs: with its gradient written out, and
where none is needed in blocks whose scores stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bertkit.batch import Bucket
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.dropout import dropout_mask
from bertkit.nn.padding import by_head, put
from bertkit.nn.precision import BF16_TILE_ROWS

MAX_SCORES = 1 << 21
"""Scores that are computed at a time where no gradient needs them: so many stay in a processor's
cache (notes/2026-11.md)."""

BF16_LANES = 32
"""How many bf16 numbers a processor's vector holds."""


class Bmm:
    """Batched matrix products over buckets of near-equal length.

    On CPUs the fastest for short texts; with dropout, and in bf16 without AMX and without a
    gradient, for all (notes/2026-11.md).
    """

    def refuses(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> str | None:
        return None

    def __call__(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> Tensor:
        if not dropout and not torch.is_grad_enabled():
            return _in_blocks(q, kv, context)
        bias = context.bias
        added = [] if bias is None else [bias(q, kv, *pair) for pair in context.buckets]
        mixed: Tensor = _Products.apply(q, kv, context, dropout, *added)  # type: ignore[no-untyped-call]
        return mixed


class _Products(torch.autograd.Function):
    """`Bmm`, with its gradient written out.

    Autograd's own would copy and add up q, k and v one by one, through hundreds of small
    operations (notes/2026-11.md).
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, q: Tensor, kv: Tensor, context: AttentionContext, rate: float, *biases: Tensor
    ) -> Tensor:
        _, heads, width = q.shape
        scale = context.scaling(width)
        mixed = torch.zeros_like(q, memory_format=torch.contiguous_format)
        pairs = context.buckets
        sizes = [one.sequences * heads * one.length * other.length for one, other in pairs]
        kept = dropout_mask((sum(sizes),), rate, q).split(sizes) if rate else [None] * len(sizes)
        saved = []
        for place, ((queries, keys), factors) in enumerate(zip(pairs, kept, strict=True)):
            x, y = by_head(q[:, None], queries), by_head(kv, keys)
            k, v = y.flatten(1, 2)
            scores = _scaled(x.view(len(k), -1, width), k.transpose(1, 2), scale)
            heads_apart = scores.view(queries.sequences, heads, queries.length, keys.length)
            for bias in biases[place : place + 1]:
                heads_apart += bias
            blocked = context.blocked(keys.length, q.device)
            if blocked is not None:
                _restrict(heads_apart, blocked)
            padding = context.padding(keys)
            if padding is not None:
                _hide(heads_apart, padding)
            weights = softmax(scores)
            if factors is not None:
                factors = factors.view_as(weights)
            put(mixed[:, None], torch.bmm(_times(weights, factors), v).view_as(x), queries)
            saved += [x, y, weights, factors]
        ctx.save_for_backward(*saved)
        ctx.context, ctx.rows = context, kv.shape[0]
        ctx.biases = [bias.shape for bias in biases]
        return mixed

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        context: AttentionContext = ctx.context
        _, heads, width = grad.shape
        scale, saved = context.scaling(width), iter(ctx.saved_tensors)
        grad_q = torch.zeros_like(grad, memory_format=torch.contiguous_format)
        grad_kv, biases = None, []
        quads = zip(context.buckets, saved, saved, saved, saved, strict=True)
        for place, ((queries, keys), x, y, weights, factors) in enumerate(quads):
            if grad_kv is None:
                grad_kv = grad.new_zeros(ctx.rows, 2, y.shape[2], width)
            k, v = y.flatten(1, 2)
            q = x.view(len(k), -1, width)
            out = by_head(grad[:, None], queries, zeros=True).view_as(q)
            grad_x, grad_y = torch.empty_like(x), torch.empty_like(y)
            grad_k, grad_v = grad_y.flatten(1, 2)
            torch.bmm(_times(weights, factors).transpose(1, 2), out, out=grad_v)
            grad_weights = _times(torch.bmm(out, v.transpose(1, 2)), factors)
            scores = softmax_backward(grad_weights, weights)
            if ctx.biases:
                shape = queries.sequences, heads, queries.length, keys.length
                biases.append(scores.view(shape).sum_to_size(ctx.biases[place]))
            _scaled(scores, k, scale, grad_x.view_as(q))
            _scaled(scores.transpose(1, 2), q, scale, grad_k)
            put(grad_q[:, None], grad_x, queries)
            put(grad_kv, grad_y, keys)
        return grad_q, grad_kv, None, None, *biases


def _in_blocks(q: Tensor, kv: Tensor, context: AttentionContext) -> Tensor:
    """The same without a gradient, some `MAX_SCORES` at a time, and of them those in reach."""
    _, heads, width = q.shape
    scale = context.scaling(width)
    mixed = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for queries, keys in context.buckets:
        # of one short sequence heads are read where they lie: copies take longer than they save
        alone = queries.sequences == 1 and heads * queries.length * keys.length <= MAX_SCORES
        by = _where_they_lie if alone else by_head
        (x,), (k, v) = by(q[:, None], queries), by(kv, keys)
        padding = context.padding(keys)
        bias = None if context.bias is None else context.bias(q, kv, queries, keys)
        whole = queries.scatter_indices is None
        there = mixed[queries.start : queries.start + queries.tokens]
        out = torch.empty_like(x)
        if whole:
            out = there.unflatten(0, (queries.sequences, queries.length)).transpose(1, 2)
        for some, rows in _blocks_of(queries, heads * keys.length):
            columns = context.reach(rows, keys.length)
            part = x[some, :, rows]
            some_k, some_v = (y[some, :, columns].flatten(0, 1) for y in (k, v))
            scores = _scaled(part.reshape(len(some_k), -1, width), some_k.mT, scale)
            apart = scores.view(*part.shape[:3], -1)
            blocked = context.blocked(keys.length, q.device, rows)
            if bias is not None:
                apart += (bias[some] if len(bias) > 1 else bias)[:, :, rows, columns]
            if blocked is not None:
                _restrict(apart, blocked[:, columns])
            if padding is not None:  # whose rows may see nothing now, and are left out below
                _hide(apart, padding[some, ..., columns])
            out[some, :, rows] = torch.bmm(softmax(scores), some_v).view_as(part)
        if not whole:
            put(mixed[:, None], out[None], queries)
    return mixed


def _where_they_lie(x: Tensor, bucket: Bucket) -> Tensor:
    """`by_head` of one sequence, without a copy."""
    return x[bucket.start : bucket.start + bucket.tokens].permute(1, 2, 0, 3)[:, None]


def _blocks_of(queries: Bucket, each: int) -> Iterator[tuple[slice, slice]]:
    """Which sequences, and which of their queries, are computed at a time; a query has `each`
    scores.
    """
    together = max(1, MAX_SCORES // (queries.length * each))
    parts = -(-queries.length * each // MAX_SCORES)
    rows = -(-queries.length // parts)
    rows += -rows % BF16_TILE_ROWS
    for first in range(0, queries.sequences, together):
        for start in range(0, queries.length, rows):
            yield slice(first, first + together), slice(start, start + rows)


def _restrict(scores: Tensor, blocked: Tensor) -> None:
    """Let queries not see what is `blocked` (Tq, Tk), by a finite number: a row of padding may see
    nothing else, and 0 / 0 would spread. Shapes: scores (S, H, Tq, Tk).
    """
    scores.masked_fill_(blocked, torch.finfo(scores.dtype).min)


def _hide(scores: Tensor, padding: Tensor) -> None:
    """Let nobody see these columns. Torch fills by a mask one number at a time, and adds a vector
    of them (notes/2026-11.md).
    """
    if scores.shape[-1] < BF16_LANES:
        scores.masked_fill_(padding, -torch.inf)
    else:
        scores += torch.zeros_like(padding, dtype=scores.dtype).masked_fill_(padding, -torch.inf)


def softmax(scores: Tensor) -> Tensor:
    """Over the last axis; in fp32 where torch would take bf16 numbers beside a few vectors one by
    one, up to four times as long (notes/2026-11.md).
    """
    width = scores.shape[-1]
    if scores.dtype == torch.bfloat16 and width % BF16_LANES and width < 4 * BF16_LANES:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1)


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """The gradient of `softmax`, of whose result these are the `weights`."""
    if weights.dtype == torch.bfloat16 and weights.shape[-1] < BF16_LANES:
        wide = torch._softmax_backward_data(grad.float(), weights.float(), -1, torch.float32)
        return wide.to(weights.dtype)
    return torch._softmax_backward_data(grad, weights, -1, weights.dtype)


def _scaled(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Scale a b, in one call."""
    start = a.new_empty(()) if out is None else out  # not read: beta is 0
    product: Tensor = torch.baddbmm(start, a, b, beta=0, alpha=scale, out=out)
    return product


def _times(weights: Tensor, factors: Tensor | None) -> Tensor:
    return weights if factors is None else weights * factors
