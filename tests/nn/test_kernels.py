"""All kernels compute the same attention, independent of the other sequences in a batch."""

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
from bertkit.nn.kernels import (
    Kernel,
    fused_attention,
    is_varlen_supported,
    local_attention,
    varlen_attention,
)
from bertkit.nn.matmul_attention import bmm_attention, softmax, softmax_backward
from bertkit.nn.padding import pad_bucket, pad_to_tiles
from bertkit.nn.precision import BF16_TILE_ROWS

KERNELS: list[Kernel] = [attend, bmm_attention, fused_attention, local_attention]
LAYOUTS = {
    "equal": [7, 7, 7],
    "near equal": [17, 20, 32],
    "mixed": [1, 2, 15, 16, 17, 40, 190, 192],
    "long": [193, 210, 400],
    "both sides of the choice": [5, 100, 192, 193, 250],
}
WIDTH, HEADS = 8, 4


class Table:
    """Learned bias per distance, like in T5 and MPNet."""

    def __init__(self) -> None:
        self.weight = torch.randn(HEADS, 2 * MOST, requires_grad=True)

    def __call__(self, q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor:
        rows = torch.arange(queries.length)[:, None]
        return self.weight[:, torch.arange(keys.length) - rows + MOST][None]


class Content:
    """Bias of queries and positions, like the terms of DeBERTa."""

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


def make_inputs(
    sizes: list[int], case: str = "all", *, padding_rows: int = 0, kv_heads: int = HEADS
) -> tuple[Tensor, Tensor, AttentionContext]:
    """Return queries, keys, and values of a layout, followed by rows of padding."""
    values = dict(CASES[case])
    if "bias" in values:
        values["bias"] = values["bias"]()  # type: ignore[operator]
    if values.pop("cross", False):
        key_sizes = [1 + size * 7 % 50 for size in sizes]
        values["cross"] = Packed.of(key_sizes, any_order=True)
    context = AttentionContext(Packed.of(sizes), **values)  # type: ignore[arg-type]
    q = torch.randn(context.queries.total + padding_rows, HEADS, WIDTH)
    kv = torch.randn(context.keys.total + 2 * padding_rows, 2, kv_heads, WIDTH)
    return q, kv, context


def reference(q: Tensor, kv: Tensor, context: AttentionContext) -> Tensor:
    """Compute softmax attention for one sequence and head at a time."""
    out = torch.zeros_like(q)
    group = HEADS // kv.shape[2]
    scale = WIDTH**-0.5 if context.scale is None else context.scale
    starts = (
        list(itertools.pairwise(x.cu_seqlens.tolist())) for x in (context.queries, context.keys)
    )
    for (start, end), (first, last) in zip(*starts, strict=True):
        distances = torch.arange(last - first) - torch.arange(end - start)[:, None]
        is_masked = torch.zeros_like(distances, dtype=torch.bool)
        if context.causal:
            is_masked |= distances > 0
        if context.window is not None:
            is_masked |= distances.abs() > context.window
        for head in range(HEADS):
            queries = q[start:end, head]
            k, v = kv[first:last, :, head // group].unbind(1)
            scores = queries @ k.T * scale
            if isinstance(context.bias, Table):
                scores = scores + context.bias.weight[head][distances + MOST]
            elif isinstance(context.bias, Content):
                scores = scores + queries @ context.bias.weight[: last - first, head].T / 8
            weights = torch.softmax(scores.masked_fill(is_masked, -torch.inf), -1)
            out[start:end, head] = weights @ v
    return out


def learned(context: AttentionContext) -> list[Tensor]:
    """Return the learned tensors besides queries, keys, and values."""
    return [context.bias.weight] if isinstance(context.bias, Table | Content) else []


def skip_unsupported(kernel: Kernel, context: AttentionContext) -> None:
    if kernel is local_attention and (context.window is None or context.bias is not None):
        pytest.skip("local attention requires a window, and no bias")


@pytest.mark.parametrize(("kv_heads", "padding_rows"), [(HEADS, 0), (HEADS, 3), (2, 0), (1, 0)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("case", CASES)
def test_kernels_match_reference(
    kernel: Kernel, case: str, kv_heads: int, padding_rows: int
) -> None:
    for sizes in LAYOUTS.values():
        q, kv, context = make_inputs(sizes, case, padding_rows=padding_rows, kv_heads=kv_heads)
        skip_unsupported(kernel, context)
        actual = kernel(q, kv, context, 0.0)
        torch.testing.assert_close(actual, reference(q, kv, context))


@torch.no_grad()
@pytest.mark.parametrize(("kv_heads", "padding_rows"), [(HEADS, 0), (HEADS, 3), (2, 0), (1, 0)])
@pytest.mark.parametrize("scores", [1, 5_000, 100_000, products.MAX_SCORES])
@pytest.mark.parametrize("case", CASES)
def test_bmm_matches_reference_for_any_block_size(
    case: str, scores: int, kv_heads: int, padding_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "MAX_SCORES", scores)
    for sizes in [*LAYOUTS.values(), [9], [150]]:
        q, kv, context = make_inputs(sizes, case, padding_rows=padding_rows, kv_heads=kv_heads)
        actual = bmm_attention(q, kv, context, 0.0)
        torch.testing.assert_close(actual, reference(q, kv, context))


@torch.no_grad()
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"bias of the content"}))
def test_bmm_in_bf16_matches_reference_approximately(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "MAX_SCORES", 100_000)
    for sizes in [*LAYOUTS.values(), [150]]:
        q, kv, context = make_inputs(sizes, case)
        q, kv = q.bfloat16(), kv.bfloat16()
        actual = bmm_attention(q, kv, context, 0.0)
        torch.testing.assert_close(
            actual.float(), reference(q.float(), kv.float(), context), atol=0.05, rtol=0.05
        )


@pytest.mark.parametrize(
    ("sizes", "case", "scores"),
    [([40] * 50, "all", 50 * 40 * 40), ([400, 400], "all", 2 * 400 * 400),
     ([400], "all", 400 * 400), ([407] * 9, "cross", 9 * 407 * 50),
     ([2000], "causal", 2000 * 2000 * 0.52), ([2000], "window of 20", 2000 * (32 + 2 * 20)),
     ([2000], "causal window", 2000 * (32 + 20))],
)  # fmt: skip
def test_bmm_computes_scores_in_limited_blocks(
    sizes: list[int], case: str, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_counts = []

    def baddbmm(*arguments: Tensor, **options: float) -> Tensor:
        product = product_of(*arguments, **options)
        score_counts.append(product.numel())
        return product

    product_of = torch.baddbmm
    monkeypatch.setattr(torch, "baddbmm", baddbmm)
    monkeypatch.setattr(products, "MAX_SCORES", 100_000)
    q, kv, context = make_inputs(sizes, case)
    with torch.no_grad():
        bmm_attention(q, kv, context, 0.0)
    assert len(score_counts) > 1
    assert max(score_counts) <= max(110_000, BF16_TILE_ROWS * HEADS * max(sizes))
    assert 0.9 * HEADS * scores <= sum(score_counts) <= 1.05 * HEADS * scores


@pytest.mark.parametrize(("kv_heads", "padding_rows"), [(HEADS, 0), (HEADS, 3), (2, 0)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("case", CASES)
def test_gradients_match_reference(
    kernel: Kernel, case: str, kv_heads: int, padding_rows: int
) -> None:
    for sizes in LAYOUTS.values():
        q, kv, context = make_inputs(sizes, case, padding_rows=padding_rows, kv_heads=kv_heads)
        skip_unsupported(kernel, context)
        inputs = [q.requires_grad_(), kv.requires_grad_(), *learned(context)]
        weight = torch.randn(q.shape)
        actual_gradients = torch.autograd.grad((kernel(q, kv, context, 0.0) * weight).sum(), inputs)
        expected_gradients = torch.autograd.grad((reference(q, kv, context) * weight).sum(), inputs)
        for actual, expected in zip(actual_gradients, expected_gradients, strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["all", "causal window", "learned bias", "cross"])
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_dropout_gradients_match_finite_differences(sizes: list[int], case: str) -> None:
    q, kv, context = make_inputs(sizes, case)
    if isinstance(context.bias, Table):
        context.bias.weight = context.bias.weight.detach().double().requires_grad_()
    given = [q.double(), kv.double()]

    def mixed(*inputs: Tensor) -> Tensor:
        torch.manual_seed(0)
        return bmm_attention(*inputs, context, 0.3)

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


def test_dropout_keeps_mean() -> None:
    q, kv, context = make_inputs([40] * 4)
    samples = torch.stack([bmm_attention(q, kv, context, 0.2) for _ in range(400)])
    exact = reference(q, kv, context)
    assert (samples[0] - samples[1]).abs().max() > 0.01
    assert (samples.mean(0) - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize(("kv_heads", "padding_rows"), [(HEADS, 0), (HEADS, 3), (2, 0), (1, 3)])
@pytest.mark.parametrize("case", CASES)
def test_single_sequence_matches_reference_without_gradient(
    case: str, kv_heads: int, padding_rows: int
) -> None:
    for size in (1, 20, 192):
        q, kv, context = make_inputs([size], case, padding_rows=padding_rows, kv_heads=kv_heads)
        expected = reference(q, kv, context)
        with torch.no_grad():
            torch.testing.assert_close(bmm_attention(q, kv, context, 0.0), expected)


@pytest.mark.parametrize("wrong", [{"scale": 0.4}, {"causal": True}, {"window": 30}])
def test_control_different_context_differs(wrong: dict[str, object]) -> None:
    q, kv, context = make_inputs(LAYOUTS["mixed"])
    other = attend(q, kv, replace(context, **wrong))  # type: ignore[arg-type]
    assert (other - reference(q, kv, context)).abs().max() > 1e-3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [3, 16, 100, BMM_MAX_LENGTH, BMM_MAX_LENGTH + 1, 300])
def test_output_does_not_depend_on_other_sequences(size: int, case: str) -> None:
    sizes = sorted([1, 10, size, 64, 250])
    q, kv, context = make_inputs(sizes, case)
    index = sizes.index(size)
    layouts = {"queries": Packed.of([size])}
    if context.cross is not None:
        layouts["cross"] = Packed.of([context.cross.lengths[index]])
    parts = [
        slice(*x.cu_seqlens[index : index + 2].tolist()) for x in (context.queries, context.keys)
    ]
    alone = attend(q[parts[0]], kv[parts[1]], replace(context, **layouts))
    together = attend(q, kv, context)[parts[0]]
    torch.testing.assert_close(alone, together, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "learns", "amx", "longest"),
    [(torch.float32, False, True, 192), (torch.float32, True, True, 192),
     (torch.bfloat16, False, False, 513), (torch.bfloat16, False, True, 96),
     (torch.bfloat16, True, False, 512), (torch.bfloat16, True, True, 512)],
    ids=str,
)  # fmt: skip
def test_kernel_choice_depends_on_length(
    dtype: torch.dtype, learns: bool, amx: bool, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: dict[str, tuple[int, ...]] = {}

    def replace_kernel(name: str) -> None:
        def call(q: Tensor, kv: Tensor, context: AttentionContext, dropout: float) -> Tensor:
            lengths[name] = context.queries.lengths
            return q

        monkeypatch.setattr(attention, name, call)

    monkeypatch.setattr(attention, "has_amx", lambda: amx)
    for name in ("bmm_attention", "fused_attention", "local_attention"):
        replace_kernel(name)
    q, kv, context = make_inputs([90, 96, 97, 192, 193, 512, 513])
    with torch.set_grad_enabled(learns):
        attend(q.to(dtype), kv.to(dtype), context)
    assert lengths["bmm_attention"][-1] == longest
    assert lengths.get("fused_attention", ())[:1] == (() if longest == 513 else (longest + 1,))
    if longest == 513:  # sequences with a window use this kernel, too
        lengths.clear()
        with torch.no_grad():
            attend(q.to(dtype), kv.to(dtype), replace(context, window=16))
        assert lengths == {"bmm_attention": (90, 96, 97, 192, 193, 512, 513)}


def test_varlen_attention_requires_cuda() -> None:
    q, _, context = make_inputs([4])
    assert not is_varlen_supported(q.bfloat16(), context, 0.0)


@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("case", CASES)
def test_padded_layout_matches_reference(case: str, kv_heads: int) -> None:
    q, kv, context = make_inputs([3, 5, 9], case, kv_heads=kv_heads)

    def rows(layout: Packed) -> Padded:
        lengths = torch.tensor(layout.lengths)[:, None]
        return Padded(torch.arange(layout.longest + 2) < lengths)

    def spread(x: Tensor, mask: Tensor) -> Tensor:
        out = torch.randn(*mask.shape, *x.shape[1:])  # random values in padding
        out[mask] = x
        return out.flatten(0, 1)

    queries, keys = rows(context.queries), rows(context.keys)
    padded_context = replace(context, queries=queries, cross=context.cross and keys)  # type: ignore[arg-type]
    actual = attend(spread(q, queries.mask), spread(kv, keys.mask), padded_context)
    actual = actual.unflatten(0, queries.mask.shape)[queries.mask]
    torch.testing.assert_close(actual, reference(q, kv, context))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_varlen_matches_reference_on_cuda(sizes: list[int], kv_heads: int) -> None:
    for case in ("all", "window of 20", "causal", "causal window", "scale", "cross"):
        q, kv, context = make_inputs(sizes, case, kv_heads=kv_heads)
        bf16_inputs = [x.to("cuda", torch.bfloat16) for x in (q, kv)]
        cuda_context = replace(context, queries=context.queries.to("cuda"))
        if context.cross is not None:
            cuda_context = replace(cuda_context, cross=context.cross.to("cuda"))
        assert is_varlen_supported(bf16_inputs[0], cuda_context, 0.0)
        assert not is_varlen_supported(bf16_inputs[0], cuda_context, 0.1)
        actual = varlen_attention(*bf16_inputs, cuda_context, 0.0).float().cpu()
        torch.testing.assert_close(actual, reference(q, kv, context), atol=3e-2, rtol=3e-2)


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
def test_bf16_rows_are_padded_with_zeros(rows: int) -> None:
    x = torch.randn(rows, 3)
    assert pad_to_tiles(x) is x
    tiled = pad_to_tiles(x.bfloat16())
    assert len(tiled) % BF16_TILE_ROWS == 0
    assert len(tiled) < rows + BF16_TILE_ROWS
    assert torch.equal(tiled[:rows], x.bfloat16())
    assert not tiled[rows:].any()
