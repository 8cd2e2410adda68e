"""Packed rows as rectangles, and back, and in whole tiles: what kernels compute on.

A bucket of equal lengths is a view; others are copied by gathers, whose gradients are gathers too.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Bucket
from bertkit.nn.precision import BF16_TILE_ROWS


def lengthened(x: Tensor, rows: int) -> Tensor:
    """(R, …) -> (rows, …), with zeros behind."""
    behind = rows - len(x)
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, behind)) if behind else x  # by 0 it would be copied


def in_tiles(x: Tensor) -> Tensor:
    """The same, in bf16 on a CPU with as many rows as fill its tiles."""
    tiled = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return lengthened(x, len(x) + -len(x) % BF16_TILE_ROWS) if tiled else x


def rectangle(x: Tensor, bucket: Bucket) -> Tensor:
    """A bucket's rows (tokens, …) -> (sequences, length, …), with zeros behind each sequence."""
    if bucket.scatter_indices is not None:
        x = _Spread.apply(x, bucket)  # type: ignore[no-untyped-call]
    return x.view(bucket.sequences, bucket.length, *x.shape[1:])


def picked(x: Tensor, bucket: Bucket) -> Tensor:
    """The tokens of a flattened rectangle."""
    if bucket.scatter_indices is None:
        return x
    picked: Tensor = _Pick.apply(x, bucket)  # type: ignore[no-untyped-call]
    return picked


def by_head(x: Tensor, bucket: Bucket, *, zeros: bool = False) -> Tensor:
    """A bucket of (R, C, H, K) as (C, sequences, H, length, K), contiguous.

    Behind a sequence's end stands its last token, for a gather takes a third of the time of zeros
    and a scatter, and weights there are 0; a gradient has `zeros`.
    """
    x = x[bucket.start : bucket.start + bucket.tokens]
    if bucket.gather_indices is not None:
        x = spread(x, bucket) if zeros else x.index_select(0, bucket.gather_indices)
    x = x.unflatten(0, (bucket.sequences, bucket.length))
    return x.permute(2, 0, 3, 1, 4).contiguous()


def put(into: Tensor, x: Tensor, bucket: Bucket) -> None:
    """The inverse of `by_head`, into its place."""
    part = into[bucket.start : bucket.start + bucket.tokens]
    x = x.permute(1, 3, 0, 2, 4)
    if bucket.scatter_indices is None:
        part.unflatten(0, (bucket.sequences, bucket.length)).copy_(x)
    else:
        torch.index_select(x.flatten(0, 1), 0, bucket.scatter_indices, out=part)


def spread(x: Tensor, bucket: Bucket) -> Tensor:
    """Rows to their places in the rectangle, among zeros."""
    assert bucket.scatter_indices is not None
    places = bucket.sequences * bucket.length
    return x.new_zeros(places, *x.shape[1:]).index_copy_(0, bucket.scatter_indices, x)


class _Spread(torch.autograd.Function):
    """`spread`; its gradient is a gather: autograd's own would scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, bucket: Bucket) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.bucket = bucket
        return spread(x, bucket)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return grad.index_select(0, ctx.bucket.scatter_indices), None


class _Pick(torch.autograd.Function):
    """Rows from their places: the transpose of `_Spread`."""

    @staticmethod
    def forward(ctx, x: Tensor, bucket: Bucket) -> Tensor:  # type: ignore[no-untyped-def]
        assert bucket.scatter_indices is not None
        ctx.bucket = bucket
        return x.index_select(0, bucket.scatter_indices)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return spread(grad, ctx.bucket), None
