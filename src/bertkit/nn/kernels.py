"""Attention kernels: softmax(q kᵀ / √K) v over packed sequences, four ways behind one signature.

With a `window` a token sees those at most as many tokens away (Beltagy et al. 2020, section 3.1).

A kernel that cannot serve a batch says why in a sentence (`refuses`), so "why is it slow?" has an
answer and tests skip with reasons.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Packed, Run
from bertkit.nn.dropout import keep

BLOCK = 64
"""Queries of a block of `Local` at least; a wider window takes as many."""


class Kernel(Protocol):
    """One way to compute attention. Shapes: qkv (R, 3, H, K) -> (R, H, K).

    Of the R rows those behind the layout's N tokens are padding: zeros come back in their place.
    """

    def refuses(
        self, qkv: Tensor, layout: Packed, *, window: int | None = None, dropout: float = 0.0
    ) -> str | None:
        """None, or the reason why this kernel cannot serve this batch."""
        ...

    def __call__(
        self, qkv: Tensor, layout: Packed, *, window: int | None, dropout: float
    ) -> Tensor: ...


class Bmm:
    """Batched matrix products over runs of near-equal length.

    On CPUs the fastest for short texts, and with dropout for all (docs/log.md).
    """

    def refuses(
        self, qkv: Tensor, layout: Packed, *, window: int | None = None, dropout: float = 0.0
    ) -> str | None:
        return None

    def __call__(
        self, qkv: Tensor, layout: Packed, *, window: int | None, dropout: float
    ) -> Tensor:
        mixed: Tensor = _Products.apply(qkv, layout, window, dropout)  # type: ignore[no-untyped-call]
        return mixed


class Fused:
    """torch's `scaled_dot_product_attention` over the same runs: no score matrix in memory."""

    def refuses(
        self, qkv: Tensor, layout: Packed, *, window: int | None = None, dropout: float = 0.0
    ) -> str | None:
        return None

    def __call__(
        self, qkv: Tensor, layout: Packed, *, window: int | None, dropout: float
    ) -> Tensor:
        runs, behind = layout.runs, qkv.shape[0] - layout.total
        done = []
        # `split` parts once, so its gradient is one concatenation; each slice would give back
        # a whole tensor of zeros
        for run, part in zip(runs, qkv.split([*(r.tokens for r in runs), behind]), strict=False):
            if run.rows is not None:
                part = _Spread.apply(part, run)  # type: ignore[no-untyped-call]
            q, k, v = part.view(run.sequences, run.length, *part.shape[1:]).permute(2, 0, 3, 1, 4)
            seen = _seen(run, window, qkv.device)
            mixed = F.scaled_dot_product_attention(q, k, v, seen, dropout)
            mixed = mixed.transpose(1, 2).flatten(0, 1)
            if run.rows is not None:
                mixed = _Pick.apply(mixed, run)  # type: ignore[no-untyped-call]
            done.append(mixed)
        return F.pad(torch.cat(done), (0, 0, 0, 0, 0, behind))


class Local:
    """Blocks of queries against the keys around them: the work grows with the length of a sequence,
    and not with its square."""

    def refuses(
        self, qkv: Tensor, layout: Packed, *, window: int | None = None, dropout: float = 0.0
    ) -> str | None:
        return "the local kernel needs a window" if window is None else None

    def __call__(
        self, qkv: Tensor, layout: Packed, *, window: int | None, dropout: float
    ) -> Tensor:
        assert window is not None
        behind = qkv.shape[0] - layout.total
        parts = qkv.split([*(run.tokens for run in layout.runs), behind])
        done = [
            _blocks(part, run, window, dropout)
            for run, part in zip(layout.runs, parts, strict=False)
        ]
        return F.pad(torch.cat(done), (0, 0, 0, 0, 0, behind))


class Varlen:
    """torch's variable-length flash attention: packed sequences as they are, on CUDA."""

    def refuses(
        self, qkv: Tensor, layout: Packed, *, window: int | None = None, dropout: float = 0.0
    ) -> str | None:
        if dropout:
            return "the varlen kernel has no dropout on attention weights; set it to 0 to use it"
        if qkv.device.type != "cuda":
            return f"the varlen kernel runs on CUDA only, and the batch is on {qkv.device.type}"
        if qkv.dtype not in (torch.float16, torch.bfloat16):
            return f"the varlen kernel computes in bf16 or fp16, not in {qkv.dtype}"
        if qkv.shape[-1] % 8:
            return f"the varlen kernel needs heads a multiple of 8 wide, not {qkv.shape[-1]}"
        return None

    def __call__(
        self, qkv: Tensor, layout: Packed, *, window: int | None, dropout: float
    ) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        starts, longest = layout.starts.to(torch.int32), layout.lengths[-1]
        q, k, v = qkv[: layout.total].unbind(1)
        sides = (-1, -1) if window is None else (window, window)
        mixed = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=sides)
        assert isinstance(mixed, Tensor)  # a pair only when asked for more
        return F.pad(mixed, (0, 0, 0, 0, 0, qkv.shape[0] - layout.total))


def _blocks(part: Tensor, run: Run, window: int, dropout: float) -> Tensor:
    """A run's tokens (tokens, 3, H, K) -> (tokens, H, K), by blocks of queries."""
    if run.rows is not None:
        part = _Spread.apply(part, run)  # type: ignore[no-untyped-call]
    q, k, v = part.view(run.sequences, run.length, *part.shape[1:]).permute(2, 0, 3, 1, 4)
    size = max(BLOCK, window)
    count = -(-run.length // size)
    short = count * size - run.length
    q = F.pad(q, (0, 0, 0, short)).unflatten(2, (count, size))
    k, v = (
        F.pad(x, (0, 0, window, short + window)).unfold(2, size + 2 * window, size).mT
        for x in (k, v)
    )  # (sequences, H, count, size + 2 window, K)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    seen = _around(run, window, size, count, part.device)
    mixed: Tensor = F.scaled_dot_product_attention(q, k, v, seen, dropout)
    mixed = mixed.unflatten(0, (run.sequences, count)).transpose(2, 3).flatten(1, 2)
    mixed = mixed[:, : run.length].flatten(0, 1)
    if run.rows is not None:
        mixed = _Pick.apply(mixed, run)  # type: ignore[no-untyped-call]
    return mixed


def _around(run: Run, window: int, size: int, count: int, device: torch.device) -> Tensor:
    """What each query of a block sees among the keys of the block and `window` on each side of it.

    Shapes: (sequences · count, 1, size, size + 2 window).
    """
    starts = torch.arange(count, device=device)[:, None, None] * size
    rows = starts + torch.arange(size, device=device)[:, None]
    columns = starts - window + torch.arange(size + 2 * window, device=device)
    ends = (
        torch.full((run.sequences,), run.length, device=device)
        if run.hidden is None
        else (~run.hidden).sum((1, 2, 3))
    )[:, None, None, None]
    inside = ((rows - columns).abs() <= window) & (columns >= 0) & (columns < ends)
    seen: Tensor = inside | (rows >= ends)  # padding must see something
    return seen.flatten(0, 1)[:, None]


class _Products(torch.autograd.Function):
    """`Bmm`, with its gradient written out.

    Autograd's own would copy and add up q, k and v one by one, through hundreds of small
    operations (docs/log.md).
    """

    @staticmethod
    def forward(ctx, qkv: Tensor, layout: Packed, window: int | None, rate: float) -> Tensor:  # type: ignore[no-untyped-def]
        _, _, heads, width = qkv.shape
        mixed = qkv.new_zeros(qkv.shape[0], heads, width)
        sizes = [run.sequences * heads * run.length**2 for run in layout.runs]
        kept = keep((sum(sizes),), rate, qkv).split(sizes) if rate else [None] * len(sizes)
        saved = []
        for run, factors in zip(layout.runs, kept, strict=True):
            x = _rectangle(qkv, run)
            q, k, v = x.flatten(1, 2)
            scores = _scaled(q, k.transpose(1, 2), width**-0.5)
            hidden = beyond(window, run.length, qkv.device)
            if hidden is not None:
                # finite: a row of padding may see nothing else, and 0 / 0 would spread
                scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
            if run.hidden is not None:
                scores.unflatten(0, (run.sequences, heads)).masked_fill_(run.hidden, -torch.inf)
            weights = torch.softmax(scores, -1)
            if factors is not None:
                factors = factors.view_as(weights)
            out = torch.bmm(_times(weights, factors), v).unflatten(0, (1, run.sequences, heads))
            _put(mixed.unsqueeze(1), out, run)
            saved += [x, weights, factors]
        ctx.save_for_backward(*saved)
        ctx.layout = layout
        return mixed

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[no-untyped-def]
        rows, heads, width = grad.shape
        grad_qkv = grad.new_zeros(rows, 3, heads, width)
        saved = iter(ctx.saved_tensors)
        for run, x, weights, factors in zip(ctx.layout.runs, saved, saved, saved, strict=True):
            q, k, v = x.flatten(1, 2)
            (out,) = _rectangle(grad.unsqueeze(1), run).flatten(1, 2)
            grad_x = torch.empty_like(x)
            grad_q, grad_k, grad_v = grad_x.flatten(1, 2)
            torch.bmm(_times(weights, factors).transpose(1, 2), out, out=grad_v)
            grad_weights = _times(torch.bmm(out, v.transpose(1, 2)), factors)
            scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            _scaled(scores, k, width**-0.5, grad_q)
            _scaled(scores.transpose(1, 2), q, width**-0.5, grad_k)
            _put(grad_qkv, grad_x, run)
        return grad_qkv, None, None, None


def beyond(window: int | None, length: int, device: torch.device) -> Tensor | None:
    """(length, length), True where a column is out of a row's window; None when none is."""
    if window is None or length <= window + 1:
        return None
    places = torch.arange(length, device=device)
    return (places[:, None] - places).abs() > window


def _seen(run: Run, window: int | None, device: torch.device) -> Tensor | None:
    """(sequences, 1, rows or 1, length), True on the columns that a row sees; None if all."""
    columns = None if run.hidden is None else ~run.hidden
    hidden = beyond(window, run.length, device)
    if hidden is None:
        return columns
    if columns is None:
        return ~hidden[None, None]
    padding = ~columns.transpose(-1, -2)  # rows that see all, for a row must see something
    return columns & (~hidden | padding)


def _rectangle(x: Tensor, run: Run) -> Tensor:
    """A run of (R, C, H, K) as (C, sequences, H, length, K), contiguous."""
    x = x[run.start : run.start + run.tokens]
    if run.rows is not None:
        x = _spread(x, run)
    x = x.view(run.sequences, run.length, *x.shape[1:])
    return x.permute(2, 0, 3, 1, 4).contiguous()


def _put(into: Tensor, x: Tensor, run: Run) -> None:
    """The inverse of `_rectangle`, into its place."""
    part = into[run.start : run.start + run.tokens]
    x = x.permute(1, 3, 0, 2, 4)
    if run.rows is None:
        part.unflatten(0, (run.sequences, run.length)).copy_(x)
    else:
        torch.index_select(x.flatten(0, 1), 0, run.rows, out=part)


def _scaled(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """scale a b, in one call."""
    start = a.new_empty(()) if out is None else out  # not read: beta is 0
    product: Tensor = torch.baddbmm(start, a, b, beta=0, alpha=scale, out=out)
    return product


def _times(weights: Tensor, factors: Tensor | None) -> Tensor:
    return weights if factors is None else weights * factors


def _spread(x: Tensor, run: Run) -> Tensor:
    """Rows to their places in the rectangle, among zeros."""
    assert run.rows is not None
    return x.new_zeros(run.sequences * run.length, *x.shape[1:]).index_copy_(0, run.rows, x)


class _Spread(torch.autograd.Function):
    """`_spread`; its gradient is a gather: autograd's own would scatter."""

    @staticmethod
    def forward(ctx, x: Tensor, run: Run) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.run = run
        return _spread(x, run)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return grad.index_select(0, ctx.run.rows), None


class _Pick(torch.autograd.Function):
    """Rows from their places: the transpose of `_Spread`."""

    @staticmethod
    def forward(ctx, x: Tensor, run: Run) -> Tensor:  # type: ignore[no-untyped-def]
        assert run.rows is not None
        ctx.run = run
        return x.index_select(0, run.rows)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _spread(grad, ctx.run), None
