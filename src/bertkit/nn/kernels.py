"""Attention kernels: four implementations of softmax(scale · q kᵀ + bias) v.

A fifth kernel, `bmm_attention`, is in `matmul_attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import MASKED_SCORE, Bucket, Padded
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.padding import pad_bucket, pad_to, unpad_bucket

MIN_BLOCK_QUERIES = 64
"""Minimum number of queries in a block of `local_attention`. If the window is larger, a block has
the size of the window.
"""


Kernel = Callable[[Tensor, Tensor, AttentionContext, float], Tensor]
"""Implementation of attention: a function of q, kv, the context, and the dropout probability.

`kv` contains the keys and the values. If they have fewer heads than the queries, H / Hkv adjacent
query heads share one head of keys and values (Ainslie et al. 2023). Rows after the tokens of a
layout are padding, and the kernel returns zeros for them.

Shapes:
    q: (Rq, H, K).
    kv: (Rk, 2, Hkv, K).
    returns: (Rq, H, K).
"""


def fused_attention(q: Tensor, kv: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    """Compute attention with torch's `scaled_dot_product_attention`, which stores no score matrix.

    There is one call per bucket.
    """
    outputs = []
    for part_q, part_kv, queries, keys in _split_by_bucket(q, kv, context):
        x, y = pad_bucket(part_q, queries), pad_bucket(part_kv, keys)
        mask, causal = context.visible(keys, q.device), False
        if context.bias is not None:
            bias = context.bias(q, kv, queries, keys).to(q.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        elif context.causal and context.window is None:
            mask, causal = None, True
        k, v = y.permute(2, 0, 3, 1, 4)
        output = F.scaled_dot_product_attention(
            x.transpose(1, 2),
            k,
            v,
            mask,
            dropout,
            is_causal=causal,
            scale=context.scale,
            enable_gqa=q.shape[1] != kv.shape[2],
        )
        outputs.append(unpad_bucket(output.transpose(1, 2).flatten(0, 1), queries))
    return pad_to(torch.cat(outputs), len(q))


def local_attention(q: Tensor, kv: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    """Compute local attention in blocks of queries, each with the keys around the block.

    The context must have a window and no bias. The cost is linear in the length of a sequence,
    instead of quadratic.
    """
    outputs = [
        _attend_blocks(part_q, part_kv, queries, context, dropout)
        for part_q, part_kv, queries, _ in _split_by_bucket(q, kv, context)
    ]
    return pad_to(torch.cat(outputs), len(q))


def is_varlen_supported(q: Tensor, context: AttentionContext, dropout: float) -> bool:
    """Return whether `varlen_attention` supports a batch."""
    return (
        q.device.type == "cuda"
        and not dropout
        and context.bias is None
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[-1] % 8 == 0
    )


def varlen_attention(q: Tensor, kv: Tensor, context: AttentionContext, dropout: float) -> Tensor:
    """Compute attention with torch's variable-length flash attention on packed sequences.

    Use it only if `is_varlen_supported` returns True.
    """
    from torch.nn.attention.varlen import varlen_attn

    queries, keys = context.queries, context.keys
    side = -1 if context.window is None else context.window
    repeated = kv[: keys.total]
    if repeated.shape[2] != q.shape[1]:
        # The kernel of torch 2.11 does not support grouped-query attention.
        repeated = _repeat_heads(repeated, q.shape[1])
    k, v = repeated.unbind(1)
    output = varlen_attn(
        q[: queries.total],
        k,
        v,
        queries.cu_seqlens_int32,
        keys.cu_seqlens_int32,
        queries.longest,
        keys.longest,
        scale=context.scale,
        window_size=(side, 0 if context.causal else side),
    )
    # The kernel would return a tuple only if the log-sum-exp was also requested.
    assert isinstance(output, Tensor)
    return pad_to(output, len(q))


def dense_attention(q: Tensor, kv: Tensor, context: AttentionContext) -> Tensor:
    """Compute attention on a padded batch in single steps, for exported graphs."""
    queries, keys = (cast(Padded, x).bucket for x in (context.queries, context.keys))
    x = pad_bucket(q, queries).transpose(1, 2)
    pair = pad_bucket(kv, keys).permute(2, 0, 3, 1, 4)
    k, v = pair if pair.shape[2] == q.shape[1] else _repeat_heads(pair, q.shape[1])
    scores = x @ k.mT * context.scaling(q.shape[-1])
    if context.bias is not None:
        scores = scores + context.bias(q, kv, queries, keys)
    masked = cast(Tensor, keys.padding)
    if context.causal or context.window is not None:
        masked = masked | context.out_of_reach(queries.length, q.device)
    output: Tensor = torch.softmax(scores - masked.to(q.dtype) * MASKED_SCORE, -1) @ v
    return output.transpose(1, 2).flatten(0, 1)


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat the heads of keys or values, so that each query head has its own."""
    return x.repeat_interleave(heads // x.shape[2], 2)


def _split_by_bucket(
    q: Tensor, kv: Tensor, context: AttentionContext
) -> Iterator[tuple[Tensor, Tensor, Bucket, Bucket]]:
    """Split queries, keys, and values by bucket.

    `split` is called once, so that its gradient is one concatenation. With slices, the gradient of
    each slice would be a tensor of full size.

    Yields:
        The rows of `q`, the rows of `kv`, the bucket of the queries, and the bucket of the keys.
    """
    rows = [
        x.split([*(bucket.tokens for bucket in side), x.shape[0] - layout.total])
        for x, side, layout in zip(
            (q, kv),
            zip(*context.buckets, strict=True),
            (context.queries, context.keys),
            strict=True,
        )
    ]
    for part_q, part_kv, (queries, keys) in zip(*rows, context.buckets, strict=False):
        yield part_q, part_kv, queries, keys


def _attend_blocks(
    q: Tensor, kv: Tensor, bucket: Bucket, context: AttentionContext, dropout: float
) -> Tensor:
    """Compute local attention of a bucket in blocks of queries. Shapes: q (tokens, H, K)."""
    window = context.window
    assert window is not None
    has_shared_heads = q.shape[1] != kv.shape[2]
    q = pad_bucket(q, bucket).transpose(1, 2)
    k, v = pad_bucket(kv, bucket).permute(2, 0, 3, 1, 4)
    size = max(MIN_BLOCK_QUERIES, window)
    count = -(-bucket.length // size)
    missing = count * size - bucket.length
    q = F.pad(q, (0, 0, 0, missing)).unflatten(2, (count, size))
    # (sequences, Hkv, count, size + 2 window, K)
    k, v = (
        F.pad(x, (0, 0, window, missing + window)).unfold(2, size + 2 * window, size).mT
        for x in (k, v)
    )
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    mask = _block_mask(bucket, context, size, count, q.device)
    output: Tensor = F.scaled_dot_product_attention(
        q, k, v, mask, dropout, scale=context.scale, enable_gqa=has_shared_heads
    )
    output = output.unflatten(0, (bucket.sequences, count)).transpose(2, 3).flatten(1, 2)
    return unpad_bucket(output[:, : bucket.length].flatten(0, 1), bucket)


def _block_mask(
    bucket: Bucket, context: AttentionContext, size: int, count: int, device: torch.device
) -> Tensor:
    """Return a mask of the keys that each query of each block attends to.

    The keys of a block are the keys at the positions of its queries, and `window` keys on each
    side.

    Shapes:
        returns: (sequences · count, 1, size, size + 2 window).
    """
    window = context.window
    assert window is not None
    starts = torch.arange(count, device=device)[:, None, None] * size
    rows = starts + torch.arange(size, device=device)[:, None]
    columns = starts - window + torch.arange(size + 2 * window, device=device)
    ends = (
        torch.full((bucket.sequences,), bucket.length, device=device)
        if bucket.padding is None
        else (~bucket.padding).sum((1, 2, 3))
    )[:, None, None, None]
    distance = rows - columns
    near = (distance >= 0) & (distance <= window) if context.causal else distance.abs() <= window
    is_key = near & (columns >= 0) & (columns < ends)
    # Queries that are padding attend to all keys, because a softmax needs at least one key.
    mask: Tensor = is_key | (rows >= ends)
    return mask.flatten(0, 1)[:, None]
