"""Attention kernels: softmax(scale · q kᵀ + bias) v, five ways behind one signature; `Bmm`, the
fifth, is in `products.py`.

A kernel that cannot serve a batch says why in a sentence (`refuses`), so "why is it slow?" has an
answer and tests skip with reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import MASKED_SCORE, Bucket, Padded
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.padding import picked, rectangle

MIN_BLOCK_QUERIES = 64
"""Queries of a block of `Local` at least; a wider window takes as many."""


class Kernel(Protocol):
    """One way to compute attention. Shapes: q (Rq, H, K), kv (Rk, 2, Hkv, K) -> (Rq, H, K).

    Keys come first, then values. With fewer heads of these than of queries, H / Hkv neighbors
    share one (Ainslie et al. 2023). Of the rows those behind the tokens of a layout are padding:
    zeros come back in their place.
    """

    def refuses(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> str | None:
        """None, or the reason why this kernel cannot serve this batch."""
        ...

    def __call__(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> Tensor: ...


class Fused:
    """torch's `scaled_dot_product_attention` over the same buckets: no score matrix in memory."""

    def refuses(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> str | None:
        return None

    def __call__(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> Tensor:
        done = []
        for part, both, queries, keys in _parted(q, kv, context):
            x, y = rectangle(part, queries), rectangle(both, keys)
            seen, causal = context.visible(keys, q.device), False
            if context.bias is not None:
                added = context.bias(q, kv, queries, keys).to(q.dtype)
                seen = added if seen is None else added.masked_fill(~seen, -torch.inf)
            elif context.causal and context.window is None:
                seen, causal = None, True
            k, v = y.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(
                x.transpose(1, 2),
                k,
                v,
                seen,
                dropout,
                is_causal=causal,
                scale=context.scale,
                enable_gqa=q.shape[1] != kv.shape[2],
            )
            done.append(picked(mixed.transpose(1, 2).flatten(0, 1), queries))
        return _behind(torch.cat(done), q)


class Local:
    """Blocks of queries against the keys around them: the work grows with the length of a sequence,
    and not with its square.
    """

    def refuses(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> str | None:
        if context.window is None:
            return "the local kernel needs a window"
        if context.bias is not None:
            return "the local kernel adds nothing to scores; take Fused or Bmm with a bias"
        return None

    def __call__(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> Tensor:
        done = [
            _blocks(part, both, queries, context, dropout)
            for part, both, queries, _ in _parted(q, kv, context)
        ]
        return _behind(torch.cat(done), q)


class Varlen:
    """torch's variable-length flash attention: packed sequences as they are, on CUDA."""

    def refuses(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> str | None:
        if dropout:
            return "the varlen kernel has no dropout on attention weights; set it to 0 to use it"
        if context.bias is not None:
            return "the varlen kernel adds nothing to scores; take Fused or Bmm with a bias"
        if q.device.type != "cuda":
            return f"the varlen kernel runs on CUDA only, and the batch is on {q.device.type}"
        if q.dtype not in (torch.float16, torch.bfloat16):
            return f"the varlen kernel computes in bf16 or fp16, not in {q.dtype}"
        if q.shape[-1] % 8:
            return f"the varlen kernel needs heads a multiple of 8 wide, not {q.shape[-1]}"
        return None

    def __call__(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        queries, keys = context.queries, context.keys
        side = -1 if context.window is None else context.window
        both = kv[: keys.total]
        if both.shape[2] != q.shape[1]:
            both = _repeated(both, q.shape[1])  # the kernel of torch 2.11 shares no heads
        k, v = both.unbind(1)
        mixed = varlen_attn(
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
        assert isinstance(mixed, Tensor)  # a pair only when asked for more
        return _behind(mixed, q)


class DenseAttention:
    """The formula written out, over rows of one length (`Padded`): what exported graphs compute."""

    def refuses(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> str | None:
        if not isinstance(context.queries, Padded):
            return "the dense kernel is for rows of one length; take Bmm for packed sequences"
        return "the dense kernel has no dropout; set it to 0 to use it" if dropout else None

    def __call__(
        self, q: Tensor, kv: Tensor, context: AttentionContext, *, dropout: float = 0.0
    ) -> Tensor:
        queries, keys = (cast(Padded, x).bucket for x in (context.queries, context.keys))
        x = rectangle(q, queries).transpose(1, 2)
        both = rectangle(kv, keys).permute(2, 0, 3, 1, 4)
        k, v = both if both.shape[2] == q.shape[1] else _repeated(both, q.shape[1])
        scores = x @ k.mT * context.scaling(q.shape[-1])
        if context.bias is not None:
            scores = scores + context.bias(q, kv, queries, keys)
        hidden = cast(Tensor, keys.padding)
        if context.causal or context.window is not None:
            hidden = hidden | context.out_of_reach(queries.length, q.device)
        mixed: Tensor = torch.softmax(scores - hidden.to(q.dtype) * MASKED_SCORE, -1) @ v
        return mixed.transpose(1, 2).flatten(0, 1)


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Heads of keys and values as often as queries share them."""
    return x.repeat_interleave(heads // x.shape[2], 2)


def _parted(
    q: Tensor, kv: Tensor, context: AttentionContext
) -> Iterator[tuple[Tensor, Tensor, Bucket, Bucket]]:
    """The rows of each bucket. `split` parts once, so its gradient is one concatenation; each slice
    would give back a whole tensor of zeros.
    """
    parts = [
        x.split([*(bucket.tokens for bucket in side), x.shape[0] - layout.total])
        for x, side, layout in zip(
            (q, kv),
            zip(*context.buckets, strict=True),
            (context.queries, context.keys),
            strict=True,
        )
    ]
    for part, both, (queries, keys) in zip(*parts, context.buckets, strict=False):
        yield part, both, queries, keys


def _behind(mixed: Tensor, q: Tensor) -> Tensor:
    """With zeros where queries are padding."""
    if mixed.shape[0] == q.shape[0]:
        return mixed  # padded by nothing it would be copied
    return F.pad(mixed, (0, 0, 0, 0, 0, q.shape[0] - mixed.shape[0]))


def _blocks(
    q: Tensor, kv: Tensor, bucket: Bucket, context: AttentionContext, dropout: float
) -> Tensor:
    """A bucket's queries (tokens, H, K) -> (tokens, H, K), by blocks."""
    window = context.window
    assert window is not None
    grouped = q.shape[1] != kv.shape[2]
    q = rectangle(q, bucket).transpose(1, 2)
    k, v = rectangle(kv, bucket).permute(2, 0, 3, 1, 4)
    size = max(MIN_BLOCK_QUERIES, window)
    count = -(-bucket.length // size)
    short = count * size - bucket.length
    q = F.pad(q, (0, 0, 0, short)).unflatten(2, (count, size))
    k, v = (
        F.pad(x, (0, 0, window, short + window)).unfold(2, size + 2 * window, size).mT
        for x in (k, v)
    )  # (sequences, Hkv, count, size + 2 window, K)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    seen = _around(bucket, context, size, count, q.device)
    mixed: Tensor = F.scaled_dot_product_attention(
        q, k, v, seen, dropout, scale=context.scale, enable_gqa=grouped
    )
    mixed = mixed.unflatten(0, (bucket.sequences, count)).transpose(2, 3).flatten(1, 2)
    return picked(mixed[:, : bucket.length].flatten(0, 1), bucket)


def _around(
    bucket: Bucket, context: AttentionContext, size: int, count: int, device: torch.device
) -> Tensor:
    """What each query of a block sees among the keys of the block and `window` on each side of it.

    Shapes: (sequences · count, 1, size, size + 2 window).
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
    behind = rows - columns
    near = (behind >= 0) & (behind <= window) if context.causal else behind.abs() <= window
    inside = near & (columns >= 0) & (columns < ends)
    seen: Tensor = inside | (rows >= ends)  # padding must see something
    return seen.flatten(0, 1)[:, None]
