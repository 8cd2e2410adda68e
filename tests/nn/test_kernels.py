"""Every kernel computes the same attention, whatever a sequence is packed with."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bertkit.batch import Bucket, Packed, Padded
from bertkit.nn import attention
from bertkit.nn import matmul_attention as products
from bertkit.nn.attention import BMM_MAX_LENGTH, attend
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.kernels import DenseAttention, Fused, Kernel, Local, Varlen
from bertkit.nn.matmul_attention import Bmm, softmax, softmax_backward
from bertkit.nn.padding import pad_bucket, pad_to_tiles
from bertkit.nn.precision import BF16_TILE_ROWS

KERNELS: list[Kernel] = [Bmm(), Fused(), Local()]
LAYOUTS = {
    "equal": [7, 7, 7],
    "near equal": [17, 20, 32],
    "mixed": [1, 2, 15, 16, 17, 40, 190, 192],
    "long": [193, 210, 400],
    "both sides of the choice": [5, 100, 192, 193, 250],
}
WIDTH, HEADS = 8, 4


class Table:
    """A bias that is learned for each distance, as T5's and MPNet's are."""

    def __init__(self) -> None:
        self.weight = torch.randn(HEADS, 2 * MOST, requires_grad=True)

    def __call__(self, q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor:
        rows = torch.arange(queries.length)[:, None]
        return self.weight[:, torch.arange(keys.length) - rows + MOST][None]


class Content:
    """A bias made of queries and places, as the terms of DeBERTa are."""

    def __init__(self) -> None:
        self.weight = torch.randn(MOST, HEADS, WIDTH, requires_grad=True)

    def __call__(self, q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor:
        x = pad_bucket(q[queries.start : queries.start + queries.tokens], queries)
        return torch.einsum("sihk,jhk->shij", x, self.weight[: keys.length]) / 8


MOST = 512
CASES = {
    "all": {},
    "window of 1": {"window": 1},
    "window of 20": {"window": 20},
    "causal": {"causal": True},
    "causal window": {"causal": True, "window": 20},
    "scale": {"scale": 1.0},
    "learned bias": {"bias": Table},
    "bias of the content": {"bias": Content},
    "causal with a bias": {"bias": Table, "causal": True},
    "cross": {"cross": True},
    "cross with a bias": {"cross": True, "bias": Table, "scale": 0.5},
}


def made(
    sizes: list[int], case: str = "all", *, behind: int = 0, kv_heads: int = HEADS
) -> tuple[Tensor, Tensor, AttentionContext]:
    """Queries, keys and values of a layout, and of rows behind it."""
    values = dict(CASES[case])
    if "bias" in values:
        values["bias"] = values["bias"]()  # type: ignore[operator]
    if values.pop("cross", False):
        others = [1 + size * 7 % 50 for size in sizes]
        values["cross"] = Packed.of(others, any_order=True)
    context = AttentionContext(Packed.of(sizes), **values)  # type: ignore[arg-type]
    q = torch.randn(context.queries.total + behind, HEADS, WIDTH)
    kv = torch.randn(context.keys.total + 2 * behind, 2, kv_heads, WIDTH)
    return q, kv, context


def reference(q: Tensor, kv: Tensor, context: AttentionContext) -> Tensor:
    """Softmax attention written out, one sequence and head at a time."""
    out = torch.zeros_like(q)
    group = HEADS // kv.shape[2]
    scale = WIDTH**-0.5 if context.scale is None else context.scale
    starts = (
        list(itertools.pairwise(x.cu_seqlens.tolist())) for x in (context.queries, context.keys)
    )
    for (start, end), (first, last) in zip(*starts, strict=True):
        there = torch.arange(last - first) - torch.arange(end - start)[:, None]
        far = torch.zeros_like(there, dtype=torch.bool)
        if context.causal:
            far |= there > 0
        if context.window is not None:
            far |= there.abs() > context.window
        for head in range(HEADS):
            own = q[start:end, head]
            k, v = kv[first:last, :, head // group].unbind(1)
            scores = own @ k.T * scale
            if isinstance(context.bias, Table):
                scores = scores + context.bias.weight[head][there + MOST]
            elif isinstance(context.bias, Content):
                scores = scores + own @ context.bias.weight[: last - first, head].T / 8
            weights = torch.softmax(scores.masked_fill(far, -torch.inf), -1)
            out[start:end, head] = weights @ v
    return out


def learned(context: AttentionContext) -> list[Tensor]:
    """What has a gradient beside queries, keys and values."""
    return [context.bias.weight] if isinstance(context.bias, Table | Content) else []


@pytest.mark.parametrize(("kv_heads", "behind"), [(HEADS, 0), (HEADS, 3), (2, 0), (1, 0)])
@pytest.mark.parametrize("kernel", [None, *KERNELS], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_the_formula(
    kernel: Kernel | None, case: str, kv_heads: int, behind: int
) -> None:
    for sizes in LAYOUTS.values():
        q, kv, context = made(sizes, case, behind=behind, kv_heads=kv_heads)
        reason = kernel.unsupported_reason(q, kv, context) if kernel else None
        if reason:
            pytest.skip(reason)
        ours = attend(q, kv, context, kernel=kernel)
        torch.testing.assert_close(ours, reference(q, kv, context))


@torch.no_grad()
@pytest.mark.parametrize(("kv_heads", "behind"), [(HEADS, 0), (HEADS, 3), (2, 0), (1, 0)])
@pytest.mark.parametrize("scores", [1, 5_000, 100_000, products.MAX_SCORES])
@pytest.mark.parametrize("case", CASES)
def test_products_in_blocks_of_any_size_equal_the_formula(
    case: str, scores: int, kv_heads: int, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "MAX_SCORES", scores)
    for sizes in [*LAYOUTS.values(), [9], [150]]:
        q, kv, context = made(sizes, case, behind=behind, kv_heads=kv_heads)
        ours = attend(q, kv, context, kernel=Bmm())
        torch.testing.assert_close(ours, reference(q, kv, context))


@torch.no_grad()
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"bias of the content"}))
def test_products_in_blocks_are_near_in_bf16(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MAX_SCORES", 100_000)
    for sizes in [*LAYOUTS.values(), [150]]:
        q, kv, context = made(sizes, case)
        q, kv = q.bfloat16(), kv.bfloat16()
        ours = attend(q, kv, context, kernel=Bmm())
        torch.testing.assert_close(
            ours.float(), reference(q.float(), kv.float(), context), atol=0.05, rtol=0.05
        )


@pytest.mark.parametrize(
    ("sizes", "case", "scores"),
    [
        ([40] * 50, "all", 50 * 40 * 40),
        ([400, 400], "all", 2 * 400 * 400),
        ([400], "all", 400 * 400),
        ([407] * 9, "cross", 9 * 407 * 50),
        ([2000], "causal", 2000 * 2000 * 0.52),
        ([2000], "window of 20", 2000 * (32 + 2 * 20)),
        ([2000], "causal window", 2000 * (32 + 20)),
    ],
)
def test_so_many_scores_are_made_at_a_time_and_few_that_nobody_sees(
    sizes: list[int], case: str, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_at_once = []

    def baddbmm(*arguments: Tensor, **options: float) -> Tensor:
        product = product_of(*arguments, **options)
        made_at_once.append(product.numel())
        return product

    product_of = torch.baddbmm
    monkeypatch.setattr(torch, "baddbmm", baddbmm)
    monkeypatch.setattr(products, "MAX_SCORES", 100_000)
    q, kv, context = made(sizes, case)
    with torch.no_grad():
        attend(q, kv, context, kernel=Bmm())
    assert len(made_at_once) > 1
    assert max(made_at_once) <= max(110_000, BF16_TILE_ROWS * HEADS * max(sizes))
    assert 0.9 * HEADS * scores <= sum(made_at_once) <= 1.05 * HEADS * scores


@pytest.mark.parametrize(("kv_heads", "behind"), [(HEADS, 0), (HEADS, 3), (2, 0)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_the_formula(kernel: Kernel, case: str, kv_heads: int, behind: int) -> None:
    for sizes in LAYOUTS.values():
        q, kv, context = made(sizes, case, behind=behind, kv_heads=kv_heads)
        reason = kernel.unsupported_reason(q, kv, context)
        if reason:
            pytest.skip(reason)
        of = [q.requires_grad_(), kv.requires_grad_(), *learned(context)]
        weight = torch.randn(q.shape)
        ours = torch.autograd.grad((attend(q, kv, context, kernel=kernel) * weight).sum(), of)
        theirs = torch.autograd.grad((reference(q, kv, context) * weight).sum(), of)
        for found, wanted in zip(ours, theirs, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["all", "causal window", "learned bias", "cross"])
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_gradients_with_dropout_are_those_of_the_same_factors(sizes: list[int], case: str) -> None:
    q, kv, context = made(sizes, case)
    if isinstance(context.bias, Table):
        context.bias.weight = context.bias.weight.detach().double().requires_grad_()
    given = [q.double(), kv.double()]

    def mixed(*moved: Tensor) -> Tensor:
        torch.manual_seed(0)
        return Bmm()(*moved, context, dropout=0.3)

    weight = torch.randn(q.shape, dtype=torch.double)
    along = [torch.randn_like(x) for x in given]
    for x in given:
        x.requires_grad_()
    grads = torch.autograd.grad((mixed(*given) * weight).sum(), given)
    step = 1e-6
    with torch.no_grad():
        ahead, back = (
            mixed(*(x + sign * step * a for x, a in zip(given, along, strict=True)))
            for sign in (1, -1)
        )
        change = ((ahead - back) * weight).sum() / (2 * step)
    slope = sum((g * a).sum() for g, a in zip(grads, along, strict=True))
    torch.testing.assert_close(slope, change, atol=1e-5, rtol=1e-6)


def test_dropout_keeps_the_mean() -> None:
    q, kv, context = made([40] * 4)
    drawn = torch.stack([Bmm()(q, kv, context, dropout=0.2) for _ in range(400)])
    exact = reference(q, kv, context)
    assert (drawn[0] - drawn[1]).abs().max() > 0.01
    assert (drawn.mean(0) - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize(("kv_heads", "behind"), [(HEADS, 0), (HEADS, 3), (2, 0), (1, 3)])
@pytest.mark.parametrize("case", CASES)
def test_one_sequence_without_a_gradient_equals_the_formula(
    case: str, kv_heads: int, behind: int
) -> None:
    for size in (1, 20, 192):
        q, kv, context = made([size], case, behind=behind, kv_heads=kv_heads)
        expected = reference(q, kv, context)
        with torch.no_grad():
            torch.testing.assert_close(Bmm()(q, kv, context), expected)


@pytest.mark.parametrize("wrong", [{"scale": 0.4}, {"causal": True}, {"window": 30}])
def test_control_another_context_fails(wrong: dict[str, object]) -> None:
    q, kv, context = made(LAYOUTS["mixed"])
    other = attend(q, kv, replace(context, **wrong))  # type: ignore[arg-type]
    assert (other - reference(q, kv, context)).abs().max() > 1e-3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [3, 16, 100, BMM_MAX_LENGTH, BMM_MAX_LENGTH + 1, 300])
def test_a_sequence_has_the_same_kernel_alone_and_in_a_batch(size: int, case: str) -> None:
    sizes = sorted([1, 10, size, 64, 250])
    q, kv, context = made(sizes, case)
    own = sizes.index(size)
    one = {"queries": Packed.of([size])}
    if context.cross is not None:
        one["cross"] = Packed.of([context.cross.lengths[own]])
    parts = [slice(*x.cu_seqlens[own : own + 2].tolist()) for x in (context.queries, context.keys)]
    alone = attend(q[parts[0]], kv[parts[1]], replace(context, **one))
    together = attend(q, kv, context)[parts[0]]
    torch.testing.assert_close(alone, together, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "learns", "amx", "longest"),
    [
        (torch.float32, False, True, 192),
        (torch.float32, True, True, 192),
        (torch.bfloat16, False, False, 513),
        (torch.bfloat16, False, True, 96),
        (torch.bfloat16, True, False, 512),
        (torch.bfloat16, True, True, 512),
    ],
    ids=str,
)
def test_up_to_which_length_products_are_taken(
    dtype: torch.dtype, learns: bool, amx: bool, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = {Bmm: (), Fused: ()}

    def call(self: Kernel, q: Tensor, kv: Tensor, context: AttentionContext, **_: float) -> Tensor:
        lengths[type(self)] = context.queries.lengths
        return q

    monkeypatch.setattr(attention, "has_amx", lambda: amx)
    for kernel in lengths:
        monkeypatch.setattr(kernel, "__call__", call)
    q, kv, context = made([90, 96, 97, 192, 193, 512, 513])
    with torch.set_grad_enabled(learns):
        attend(q.to(dtype), kv.to(dtype), context)
    assert lengths[Bmm][-1] == longest
    assert lengths[Fused][:1] == (() if longest == 513 else (longest + 1,))
    if longest == 513:  # those of a window, too
        lengths[Bmm] = ()
        monkeypatch.setattr(Local, "__call__", call)
        with torch.no_grad():
            attend(q.to(dtype), kv.to(dtype), replace(context, window=16))
        assert lengths[Bmm] == (90, 96, 97, 192, 193, 512, 513)


def test_a_kernel_that_cannot_serve_says_why() -> None:
    q, kv, context = made([4])
    assert "CUDA only" in (Varlen().unsupported_reason(q, kv, context) or "")
    with pytest.raises(ValueError, match="CUDA only"):
        attend(q, kv, context, kernel=Varlen())
    for kernel in (Local(), Varlen()):
        reason = kernel.unsupported_reason(q, kv, replace(context, bias=Table(), window=2)) or ""
        assert "does not support a bias" in reason


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("case", CASES)
def test_rows_of_one_length_have_the_same_attention(case: str, kv_heads: int) -> None:
    q, kv, context = made([3, 5, 9], case, kv_heads=kv_heads)

    def rows(layout: Packed) -> Padded:
        lengths = torch.tensor(layout.lengths)[:, None]
        return Padded(torch.arange(layout.longest + 2) < lengths)

    def spread(x: Tensor, mask: Tensor) -> Tensor:
        out = torch.randn(*mask.shape, *x.shape[1:])  # whatever stands in padding
        out[mask] = x
        return out.flatten(0, 1)

    queries, keys = rows(context.queries), rows(context.keys)
    there = replace(context, queries=queries, cross=context.cross and keys)  # type: ignore[arg-type]
    ours = attend(spread(q, queries.mask), spread(kv, keys.mask), there)
    ours = ours.unflatten(0, queries.mask.shape)[queries.mask]
    torch.testing.assert_close(ours, reference(q, kv, context))
    assert DenseAttention().unsupported_reason(q, kv, context) is not None


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_varlen_equals_the_formula_on_cuda(sizes: list[int], kv_heads: int) -> None:
    for case in ("all", "window of 20", "causal", "causal window", "scale", "cross"):
        q, kv, context = made(sizes, case, kv_heads=kv_heads)
        moved = [x.to("cuda", torch.bfloat16) for x in (q, kv)]
        there = replace(context, queries=context.queries.to("cuda"))
        if context.cross is not None:
            there = replace(there, cross=context.cross.to("cuda"))
        ours = Varlen()(*moved, there).float().cpu()
        torch.testing.assert_close(ours, reference(q, kv, context), atol=3e-2, rtol=3e-2)


@pytest.mark.bf16
@pytest.mark.parametrize("length", [5, 16, 31, 32, 40, 100])
def test_bf16_softmax_is_rounded_once(length: int) -> None:
    scores = (torch.randn(6, length, length) * 3).bfloat16()
    exact = torch.softmax(scores.double(), -1)
    weights = softmax(scores)
    assert weights.dtype == torch.bfloat16
    torch.testing.assert_close(weights.double(), exact, atol=1e-6, rtol=2**-8)
    grad = torch.randn_like(scores)
    wide = weights.double()
    slope = wide * (grad.double() - (wide * grad.double()).sum(-1, keepdim=True))
    back = softmax_backward(grad, weights)
    assert back.dtype == torch.bfloat16
    assert (back.double() - slope).norm() < 0.004 * slope.norm()


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33])
def test_rows_of_bf16_are_filled_up_with_zeros(rows: int) -> None:
    x = torch.randn(rows, 3)
    assert pad_to_tiles(x) is x
    tiled = pad_to_tiles(x.bfloat16())
    assert len(tiled) % BF16_TILE_ROWS == 0
    assert len(tiled) < rows + BF16_TILE_ROWS
    assert torch.equal(tiled[:rows], x.bfloat16())
    assert not tiled[rows:].any()
