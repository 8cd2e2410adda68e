"""Conversions between packed rows and padded buckets, which attention kernels compute on.

A bucket of equal lengths is a view. Other buckets are copied by gathers, whose gradients are also
gathers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Bucket
from bertkit.nn.precision import BF16_TILE_ROWS


def pad_to(x: Tensor, rows: int) -> Tensor:
    """Append zeros along the first dimension. Shapes: (R, …) -> (rows, …)."""
    missing = rows - len(x)
    # Padding by zero rows would copy x.
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x


def pad_to_tiles(x: Tensor) -> Tensor:
    """Pad bf16 rows on a CPU to a multiple of its tile size; return other tensors unchanged."""
    uses_tiles = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return pad_to(x, len(x) + -len(x) % BF16_TILE_ROWS) if uses_tiles else x


def pad_bucket(x: Tensor, bucket: Bucket) -> Tensor:
    """Pad the sequences of a bucket with zeros. Shapes: (tokens, …) -> (sequences, length, …)."""
    if bucket.scatter_indices is not None:
        x = _Scatter.apply(x, bucket)  # type: ignore[no-untyped-call]
    return x.view(bucket.sequences, bucket.length, *x.shape[1:])


def unpad_bucket(x: Tensor, bucket: Bucket) -> Tensor:
    """Select the tokens of a padded, flattened bucket.

    Shapes:
        (sequences · length, …) -> (tokens, …).
    """
    if bucket.scatter_indices is None:
        return x
    tokens: Tensor = _Gather.apply(x, bucket)  # type: ignore[no-untyped-call]
    return tokens


def gather_by_head(x: Tensor, bucket: Bucket, *, zeros: bool = False) -> Tensor:
    """Gather a bucket by head, as contiguous memory.

    Sequences are padded with their last token, because a gather takes a third of the time of zeros
    and a scatter, and attention weights of padding are 0. A gradient needs `zeros`.

    Args:
        x: Rows of all buckets.
        bucket: The bucket.
        zeros: Whether to pad with zeros.

    Shapes:
        (R, C, H, K) -> (C, sequences, H, length, K).
    """
    x = x[bucket.start : bucket.start + bucket.tokens]
    if bucket.gather_indices is not None:
        x = scatter_rows(x, bucket) if zeros else x.index_select(0, bucket.gather_indices)
    x = x.unflatten(0, (bucket.sequences, bucket.length))
    return x.permute(2, 0, 3, 1, 4).contiguous()


def scatter_by_head(target: Tensor, x: Tensor, bucket: Bucket) -> None:
    """Write a bucket back into the rows of `target`: the inverse of `gather_by_head`."""
    rows = target[bucket.start : bucket.start + bucket.tokens]
    x = x.permute(1, 3, 0, 2, 4)
    if bucket.scatter_indices is None:
        rows.unflatten(0, (bucket.sequences, bucket.length)).copy_(x)
    else:
        torch.index_select(x.flatten(0, 1), 0, bucket.scatter_indices, out=rows)


def scatter_rows(x: Tensor, bucket: Bucket) -> Tensor:
    """Write rows to their positions in the padded, flattened bucket; padding is zero."""
    assert bucket.scatter_indices is not None
    size = bucket.sequences * bucket.length
    return x.new_zeros(size, *x.shape[1:]).index_copy_(0, bucket.scatter_indices, x)


class _Scatter(torch.autograd.Function):
    """`scatter_rows` with a gather as its gradient; autograd would use a scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, bucket: Bucket) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.bucket = bucket
        return scatter_rows(x, bucket)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return grad.index_select(0, ctx.bucket.scatter_indices), None


class _Gather(torch.autograd.Function):
    """Gather of a bucket's tokens: the transpose of `_Scatter`."""

    @staticmethod
    def forward(ctx, x: Tensor, bucket: Bucket) -> Tensor:  # type: ignore[no-untyped-def]
        assert bucket.scatter_indices is not None
        ctx.bucket = bucket
        return x.index_select(0, bucket.scatter_indices)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return scatter_rows(grad, ctx.bucket), None
