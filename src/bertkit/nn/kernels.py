"""Attention kernels: softmax(q kᵀ / √K) v over packed sequences, three ways behind one signature.

A kernel that cannot serve a batch says why in a sentence (`refuses`), so "why is it slow?" has an
answer and tests skip with reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Packed, Run
from bertkit.nn.dropout import dropout as drop


class Kernel(Protocol):
    """One way to compute attention. Shapes: q, k, v and the result (N, H, K)."""

    def refuses(self, q: Tensor, layout: Packed, *, dropout: float = 0.0) -> str | None:
        """None, or the reason why this kernel cannot serve this batch."""
        ...

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Packed, *, dropout: float
    ) -> Tensor: ...


class Bmm:
    """Batched matrix products over runs of near-equal length: the fastest on CPUs for short texts.

    Below about 192 tokens it beats the fused kernel by 2.5 times on two cores (docs/log.md).
    """

    def refuses(self, q: Tensor, layout: Packed, *, dropout: float = 0.0) -> str | None:
        return None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Packed, *, dropout: float
    ) -> Tensor:
        q = q * q.shape[-1] ** -0.5
        done = []
        for run, rq, rk, rv in rectangles(q, k, v, layout):
            rq, rk, rv = (x.flatten(0, 1) for x in (rq, rk, rv))
            scores = torch.bmm(rq, rk.transpose(1, 2)).unflatten(0, (run.sequences, -1))
            if run.hidden is not None:
                scores = scores.masked_fill(run.hidden, -torch.inf)
            weights = drop(torch.softmax(scores, -1), dropout)
            mixed = torch.bmm(weights.flatten(0, 1), rv).unflatten(0, (run.sequences, -1))
            done.append(tokens(mixed, run))
        return torch.cat(done)


class Fused:
    """torch's `scaled_dot_product_attention` over the same runs: no score matrix in memory."""

    def refuses(self, q: Tensor, layout: Packed, *, dropout: float = 0.0) -> str | None:
        return None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Packed, *, dropout: float
    ) -> Tensor:
        done = []
        for run, rq, rk, rv in rectangles(q, k, v, layout):
            seen = None if run.hidden is None else ~run.hidden
            mixed = F.scaled_dot_product_attention(rq, rk, rv, seen, dropout)
            done.append(tokens(mixed, run))
        return torch.cat(done)


class Varlen:
    """torch's variable-length flash attention: packed sequences as they are, on CUDA."""

    def refuses(self, q: Tensor, layout: Packed, *, dropout: float = 0.0) -> str | None:
        if dropout:
            return "the varlen kernel has no dropout on attention weights; set it to 0 to use it"
        if q.device.type != "cuda":
            return f"the varlen kernel runs on CUDA only, and the batch is on {q.device.type}"
        if q.dtype not in (torch.float16, torch.bfloat16):
            return f"the varlen kernel computes in bf16 or fp16, not in {q.dtype}"
        if q.shape[-1] % 8:
            return f"the varlen kernel needs heads a multiple of 8 wide, not {q.shape[-1]}"
        return None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layout: Packed, *, dropout: float
    ) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        starts, longest = layout.starts.to(torch.int32), layout.lengths[-1]
        mixed = varlen_attn(q, k, v, starts, starts, longest, longest)
        assert isinstance(mixed, Tensor)  # a pair only when asked for more
        return mixed


def rectangles(
    q: Tensor, k: Tensor, v: Tensor, layout: Packed
) -> Iterator[tuple[Run, Tensor, Tensor, Tensor]]:
    """Queries, keys and values of each run as (sequences, H, T, K): views of equal lengths.

    `split` parts each once, so its gradient is one concatenation; slices would each give back a
    whole tensor of zeros.
    """
    sizes = [run.tokens for run in layout.runs]
    for run, *parts in zip(
        layout.runs, q.split(sizes), k.split(sizes), v.split(sizes), strict=True
    ):
        a, b, c = (_rectangle(part, run) for part in parts)
        yield run, a, b, c


def _rectangle(x: Tensor, run: Run) -> Tensor:
    if run.rows is not None:
        x = _Spread.apply(x, run.rows, run.sequences * run.length)  # type: ignore[no-untyped-call]
    return x.view(run.sequences, run.length, *x.shape[1:]).transpose(1, 2)


def tokens(x: Tensor, run: Run) -> Tensor:
    """The inverse of `rectangles`: (sequences, H, T, K) back to (tokens, H, K)."""
    x = x.transpose(1, 2).flatten(0, 1)
    return x if run.rows is None else _Pick.apply(x, run.rows)  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """Rows to their places among zeros. Its gradient is a gather: autograd's own would scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor, length: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(rows)
        return x.new_zeros(length, *x.shape[1:]).index_copy_(0, rows, x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        (rows,) = ctx.saved_tensors
        return grad.index_select(0, rows), None, None


class _Pick(torch.autograd.Function):
    """Rows from their places: the transpose of `_Spread`."""

    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(rows)
        ctx.length = x.shape[0]
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (rows,) = ctx.saved_tensors
        return grad.new_zeros(ctx.length, *grad.shape[1:]).index_copy_(0, rows, grad), None
