"""Conversions between packed rows and padded buckets, which attention kernels process.

If all sequences of a bucket have equal lengths, the padded bucket is a view of the packed rows.
Otherwise, rows are copied by a gather, whose gradient is also a gather.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Bucket
from bertkit.nn.precision import BF16_TILE_ROWS


def pad_to(x: Tensor, rows: int) -> Tensor:
    """Append rows of zeros. Shapes: (R, …) -> (rows, …)."""
    missing = rows - len(x)
    # If no row is missing, F.pad would still copy x.
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing)) if missing else x


def pad_to_tiles(x: Tensor) -> Tensor:
    """Pad a bf16 tensor on a CPU to a multiple of the tile size. Return other tensors unchanged."""
    uses_tiles = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    return pad_to(x, len(x) + -len(x) % BF16_TILE_ROWS) if uses_tiles else x


def pad_bucket(x: Tensor, bucket: Bucket) -> Tensor:
    """Pad the sequences of a bucket with zeros. Shapes: (tokens, …) -> (sequences, length, …)."""
    if bucket.scatter_indices is not None:
        x = _Scatter.apply(x, bucket)  # type: ignore[no-untyped-call]
    return x.view(bucket.sequences, bucket.length, *x.shape[1:])


def unpad_bucket(x: Tensor, bucket: Bucket) -> Tensor:
    """Remove the padding from a flattened bucket.

    Shapes:
        (sequences · length, …) -> (tokens, …).
    """
    if bucket.scatter_indices is None:
        return x
    tokens: Tensor = _Gather.apply(x, bucket)  # type: ignore[no-untyped-call]
    return tokens


def gather_by_head(x: Tensor, bucket: Bucket, *, zeros: bool = False) -> Tensor:
    """Copy the rows of a bucket into contiguous memory, with an axis of heads and with padding.

    By default, sequences are padded with copies of their last token. This does not change results,
    because attention weights of padding are 0. It takes a third of the time of padding with zeros.
    Gradients require zeros.

    Args:
        x: Rows of all buckets.
        bucket: The bucket to copy.
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
    """Copy a bucket back into the rows of `target`. This is the inverse of `gather_by_head`."""
    rows = target[bucket.start : bucket.start + bucket.tokens]
    x = x.permute(1, 3, 0, 2, 4)
    if bucket.scatter_indices is None:
        rows.unflatten(0, (bucket.sequences, bucket.length)).copy_(x)
    else:
        torch.index_select(x.flatten(0, 1), 0, bucket.scatter_indices, out=rows)


def scatter_rows(x: Tensor, bucket: Bucket) -> Tensor:
    """Copy packed rows to their places in a flattened bucket that is padded with zeros."""
    assert bucket.scatter_indices is not None
    size = bucket.sequences * bucket.length
    return x.new_zeros(size, *x.shape[1:]).index_copy_(0, bucket.scatter_indices, x)


class _Scatter(torch.autograd.Function):
    """Autograd function of `scatter_rows` whose gradient is a gather instead of a scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, bucket: Bucket) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.bucket = bucket
        return scatter_rows(x, bucket)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return grad.index_select(0, ctx.bucket.scatter_indices), None


class _Gather(torch.autograd.Function):
    """Autograd function that gathers the tokens of a bucket. It is the transpose of `_Scatter`."""

    @staticmethod
    def forward(ctx, x: Tensor, bucket: Bucket) -> Tensor:  # type: ignore[no-untyped-def]
        assert bucket.scatter_indices is not None
        ctx.bucket = bucket
        return x.index_select(0, bucket.scatter_indices)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return scatter_rows(grad, ctx.bucket), None
