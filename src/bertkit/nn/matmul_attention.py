"""Attention kernel that uses batched matrix multiplications (matmuls), the default on CPUs.

The gradient is implemented by hand. Inference processes blocks whose scores fit into the CPU's
cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bertkit.batch import Bucket
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.dropout import dropout_mask
from bertkit.nn.padding import gather_by_head, scatter_by_head
from bertkit.nn.precision import BF16_TILE_ROWS

MAX_SCORES = 1 << 21
"""Number of scores to compute at once in inference. So many scores fit into the cache of a CPU
(notes/2026-11.md).
"""

BF16_LANES = 32
"""Number of bf16 values in a vector register of the CPU."""


def bmm_attention(q: Tensor, kv: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    """Compute attention with batched matmuls over buckets of sequences of similar length.

    On CPUs, this is the fastest kernel for short texts. In two cases, it is the fastest kernel for
    texts of all lengths: with dropout, and in bf16 without AMX and without a gradient
    (notes/2026-11.md).
    """
    if not dropout and not torch.is_grad_enabled():
        return _attend_in_blocks(q, kv, context)
    bias = context.bias
    biases = [] if bias is None else [bias(q, kv, *pair) for pair in context.buckets]
    output: Tensor = _BmmFunction.apply(q, kv, context, dropout, *biases)  # type: ignore[no-untyped-call]
    return output


class _BmmFunction(torch.autograd.Function):
    """Autograd function of `bmm_attention` with a gradient that is implemented by hand.

    Without it, autograd would copy the gradients of q, k, and v and add them up separately, by
    hundreds of small operations (notes/2026-11.md).
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, q: Tensor, kv: Tensor, context: AttentionContext, rate: float, *biases: Tensor
    ) -> Tensor:
        _, heads, width = q.shape
        scale = context.scaling(width)
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        pairs = context.buckets
        sizes = [a.sequences * heads * a.length * b.length for a, b in pairs]
        masks = dropout_mask((sum(sizes),), rate, q).split(sizes) if rate else [None] * len(sizes)
        saved = []
        for index, ((queries, keys), factors) in enumerate(zip(pairs, masks, strict=True)):
            x, y = gather_by_head(q[:, None], queries), gather_by_head(kv, keys)
            k, v = y.flatten(1, 2)
            scores = _scaled_bmm(x.view(len(k), -1, width), k.transpose(1, 2), scale)
            by_head = scores.view(queries.sequences, heads, queries.length, keys.length)
            for bias in biases[index : index + 1]:
                by_head += bias
            blocked = context.blocked(keys.length, q.device)
            if blocked is not None:
                _mask_blocked(by_head, blocked)
            padding = context.padding(keys)
            if padding is not None:
                _mask_padding(by_head, padding)
            weights = softmax(scores)
            if factors is not None:
                factors = factors.view_as(weights)
            scatter_by_head(out[:, None], torch.bmm(_drop(weights, factors), v).view_as(x), queries)
            saved += [x, y, weights, factors]
        ctx.save_for_backward(*saved)
        ctx.context, ctx.rows = context, kv.shape[0]
        ctx.biases = [bias.shape for bias in biases]
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        context: AttentionContext = ctx.context
        _, heads, width = grad.shape
        scale, saved = context.scaling(width), iter(ctx.saved_tensors)
        grad_q = torch.zeros_like(grad, memory_format=torch.contiguous_format)
        grad_kv, biases = None, []
        quads = zip(context.buckets, saved, saved, saved, saved, strict=True)
        for index, ((queries, keys), x, y, weights, factors) in enumerate(quads):
            if grad_kv is None:
                grad_kv = grad.new_zeros(ctx.rows, 2, y.shape[2], width)
            k, v = y.flatten(1, 2)
            q = x.view(len(k), -1, width)
            out = gather_by_head(grad[:, None], queries, zeros=True).view_as(q)
            grad_x, grad_y = torch.empty_like(x), torch.empty_like(y)
            grad_k, grad_v = grad_y.flatten(1, 2)
            torch.bmm(_drop(weights, factors).transpose(1, 2), out, out=grad_v)
            grad_weights = _drop(torch.bmm(out, v.transpose(1, 2)), factors)
            scores = softmax_backward(grad_weights, weights)
            if ctx.biases:
                shape = queries.sequences, heads, queries.length, keys.length
                biases.append(scores.view(shape).sum_to_size(ctx.biases[index]))
            _scaled_bmm(scores, k, scale, grad_x.view_as(q))
            _scaled_bmm(scores.transpose(1, 2), q, scale, grad_k)
            scatter_by_head(grad_q[:, None], grad_x, queries)
            scatter_by_head(grad_kv, grad_y, keys)
        return grad_q, grad_kv, None, None, *biases


def _attend_in_blocks(q: Tensor, kv: Tensor, context: AttentionContext) -> Tensor:
    """Compute attention without a gradient, in blocks of about `MAX_SCORES` scores.

    For each block, keys that no query of the block attends to are skipped.
    """
    _, heads, width = q.shape
    scale = context.scaling(width)
    output = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for queries, keys in context.buckets:
        # A single short sequence is not copied, because the copies would take longer than they
        # save.
        is_short = queries.sequences == 1 and heads * queries.length * keys.length <= MAX_SCORES
        gather = _view_by_head if is_short else gather_by_head
        (x,), (k, v) = gather(q[:, None], queries), gather(kv, keys)
        padding = context.padding(keys)
        bias = None if context.bias is None else context.bias(q, kv, queries, keys)
        has_one_length = queries.scatter_indices is None
        target = output[queries.start : queries.start + queries.tokens]
        out = torch.empty_like(x)
        if has_one_length:
            out = target.unflatten(0, (queries.sequences, queries.length)).transpose(1, 2)
        for batch, rows in _split_into_blocks(queries, heads * keys.length):
            columns = context.reachable(rows, keys.length)
            part = x[batch, :, rows]
            batch_k, batch_v = (y[batch, :, columns].flatten(0, 1) for y in (k, v))
            scores = _scaled_bmm(part.reshape(len(batch_k), -1, width), batch_k.mT, scale)
            by_head = scores.view(*part.shape[:3], -1)
            blocked = context.blocked(keys.length, q.device, rows)
            if bias is not None:
                by_head += (bias[batch] if len(bias) > 1 else bias)[:, :, rows, columns]
            if blocked is not None:
                _mask_blocked(by_head, blocked[:, columns])
            # Queries that are padding may now have no key. `scatter_by_head` skips their results.
            if padding is not None:
                _mask_padding(by_head, padding[batch, ..., columns])
            out[batch, :, rows] = torch.bmm(softmax(scores), batch_v).view_as(part)
        if not has_one_length:
            scatter_by_head(output[:, None], out[None], queries)
    return output


def _view_by_head(x: Tensor, bucket: Bucket) -> Tensor:
    """Return the result of `gather_by_head` for a single sequence, as a view."""
    return x[bucket.start : bucket.start + bucket.tokens].permute(1, 2, 0, 3)[:, None]


def _split_into_blocks(queries: Bucket, scores_per_query: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the sequences and of their queries that have about `MAX_SCORES` scores."""
    count = max(1, MAX_SCORES // (queries.length * scores_per_query))
    parts = -(-queries.length * scores_per_query // MAX_SCORES)
    rows = -(-queries.length // parts)
    rows += -rows % BF16_TILE_ROWS
    for first in range(0, queries.sequences, count):
        for start in range(0, queries.length, rows):
            yield slice(first, first + count), slice(start, start + rows)


def _mask_blocked(scores: Tensor, blocked: Tensor) -> None:
    """Mask the scores of the keys that queries do not attend to, in place.

    The new score is finite. If it was -inf, a query that is padding and has no other key would
    result in 0 / 0, which is NaN.

    Shapes:
        scores: (S, H, Tq, Tk).
        blocked: (Tq, Tk).
    """
    scores.masked_fill_(blocked, torch.finfo(scores.dtype).min)


def _mask_padding(scores: Tensor, padding: Tensor) -> None:
    """Mask the scores of keys that are padding, in place.

    torch's `masked_fill_` processes one value at a time. An addition is faster for long rows,
    because it uses vector instructions (notes/2026-11.md).
    """
    if scores.shape[-1] < BF16_LANES:
        scores.masked_fill_(padding, -torch.inf)
    else:
        scores += torch.zeros_like(padding, dtype=scores.dtype).masked_fill_(padding, -torch.inf)


def softmax(scores: Tensor) -> Tensor:
    """Compute the softmax over the last axis.

    For some sizes of the last axis, torch processes most bf16 values one by one, which takes up to
    four times as long (notes/2026-11.md). In these cases, the softmax is computed in fp32.
    """
    width = scores.shape[-1]
    if scores.dtype == torch.bfloat16 and width % BF16_LANES and width < 4 * BF16_LANES:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1)


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """Compute the gradient of `softmax` from its result `weights`."""
    if weights.dtype == torch.bfloat16 and weights.shape[-1] < BF16_LANES:
        wide = torch._softmax_backward_data(grad.float(), weights.float(), -1, torch.float32)
        return wide.to(weights.dtype)
    return torch._softmax_backward_data(grad, weights, -1, weights.dtype)


def _scaled_bmm(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Compute the matrix products `a @ b`, multiplied by `scale`, in one call."""
    # Because beta is 0, the values of `start` are not read.
    start = a.new_empty(()) if out is None else out
    product: Tensor = torch.baddbmm(start, a, b, beta=0, alpha=scale, out=out)
    return product


def _drop(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Multiply the weights by their dropout mask, if there is one."""
    return weights if mask is None else weights * mask
