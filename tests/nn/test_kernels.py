"""Every kernel computes the same attention, whatever a sequence is packed with."""

import itertools

import pytest
import torch
from torch import Tensor

from bertkit.batch import Packed
from bertkit.nn.attention import SHORT, Attention, Sight, Trace, attend, attention_weights
from bertkit.nn.kernels import Bmm, Fused, Kernel, Local, Varlen

KERNELS: list[Kernel] = [Bmm(), Fused(), Local(), Varlen()]
LAYOUTS = {
    "equal": [7, 7, 7],
    "near equal": [17, 20, 32],
    "mixed": [1, 2, 15, 16, 17, 40, 190, 192],
    "long": [193, 210, 400],
    "both sides of the choice": [5, 100, 192, 193, 250],
}


WINDOWS = [None, 1, 20]


def reference(qkv: Tensor, layout: Packed, window: int | None = None) -> Tensor:
    """Softmax attention written out, one sequence and head at a time."""
    q, k, v = qkv.unbind(1)
    out = torch.zeros_like(q)
    for start, end in itertools.pairwise(layout.starts.tolist()):
        for head in range(q.shape[1]):
            scores = q[start:end, head] @ k[start:end, head].T / q.shape[-1] ** 0.5
            for row in range(end - start if window is not None else 0):
                scores[row, : max(0, row - window)] = -torch.inf
                scores[row, row + window + 1 :] = -torch.inf
            out[start:end, head] = torch.softmax(scores, -1) @ v[start:end, head]
    return out


def inputs(sizes: list[int], behind: int = 0) -> tuple[Tensor, Packed]:
    """Queries, keys and values of a layout, and of rows behind it."""
    layout = Packed.of(sizes)
    return torch.randn(layout.total + behind, 3, 2, 8), layout


@pytest.mark.parametrize("behind", [0, 3])
@pytest.mark.parametrize("kernel", [None, *KERNELS], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("window", WINDOWS)
def test_kernels_equal_the_formula(
    kernel: Kernel | None, sizes: list[int], behind: int, window: int | None
) -> None:
    qkv, layout = inputs(sizes, behind)
    reason = kernel.refuses(qkv, layout, window=window) if kernel else None
    if reason:
        pytest.skip(reason)
    ours = attend(qkv, layout, window=window, kernel=kernel)
    torch.testing.assert_close(ours, reference(qkv, layout, window))


@pytest.mark.parametrize("behind", [0, 3])
@pytest.mark.parametrize("kernel", KERNELS[:3], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("window", WINDOWS)
def test_gradients_equal_the_formula(
    kernel: Kernel, sizes: list[int], behind: int, window: int | None
) -> None:
    qkv, layout = inputs(sizes, behind)
    reason = kernel.refuses(qkv, layout, window=window)
    if reason:
        pytest.skip(reason)
    qkv.requires_grad_()
    weight = torch.randn(qkv.shape[0], 2, 8)
    mixed = attend(qkv, layout, window=window, kernel=kernel)
    (ours,) = torch.autograd.grad((mixed * weight).sum(), qkv)
    (theirs,) = torch.autograd.grad((reference(qkv, layout, window) * weight).sum(), qkv)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_gradients_with_dropout_are_those_of_the_same_factors(sizes: list[int]) -> None:
    qkv, layout = inputs(sizes)
    qkv = qkv.double().requires_grad_()

    def mixed(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return Bmm()(x, layout, window=None, dropout=0.3)

    weight, along = torch.randn(2, *mixed(qkv).shape, dtype=torch.double)
    along = along[:, None] * torch.randn_like(qkv)
    (grad,) = torch.autograd.grad((mixed(qkv) * weight).sum(), qkv)
    step = 1e-6
    with torch.no_grad():
        change = (mixed(qkv + step * along) - mixed(qkv - step * along)) * weight / (2 * step)
    torch.testing.assert_close((grad * along).sum(), change.sum(), atol=1e-6, rtol=1e-6)


def test_dropout_keeps_the_mean() -> None:
    qkv, layout = inputs([40] * 4)
    drawn = torch.stack([Bmm()(qkv, layout, window=None, dropout=0.2) for _ in range(400)])
    exact = reference(qkv, layout)
    assert (drawn[0] - drawn[1]).abs().max() > 0.01
    assert (drawn.mean(0) - exact).abs().max() < 0.1 * exact.abs().max()


def test_control_another_scale_fails() -> None:
    qkv, layout = inputs(LAYOUTS["mixed"])
    wrong = attend(qkv * torch.tensor([1.05, 1.0, 1.0])[:, None, None], layout)
    assert (wrong - reference(qkv, layout)).abs().max() > 1e-3


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("size", [3, 16, 100, SHORT, SHORT + 1, 300])
def test_a_sequence_has_the_same_kernel_alone_and_in_a_batch(size: int, window: int | None) -> None:
    sizes = sorted([1, 10, size, 64, 250])
    qkv, layout = inputs(sizes)
    start = int(layout.starts[sizes.index(size)])
    part = slice(start, start + size)
    alone = attend(qkv[part], Packed.of([size]), window=window)
    together = attend(qkv, layout, window=window)[part]
    torch.testing.assert_close(alone, together, atol=1e-6, rtol=1e-5)


def test_a_kernel_that_cannot_serve_says_why() -> None:
    qkv, layout = inputs([4])
    assert "CUDA only" in (Varlen().refuses(qkv, layout) or "")
    with pytest.raises(ValueError, match="CUDA only"):
        attend(qkv, layout, kernel=Varlen())


@pytest.mark.parametrize("window", WINDOWS)
def test_exact_weights_reproduce_the_output(window: int | None) -> None:
    qkv, layout = inputs(LAYOUTS["mixed"], behind=2)
    parts = qkv[: layout.total, 2].transpose(0, 1).split(list(layout.lengths), 1)
    weights = attention_weights(qkv, layout, window)
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:2]))
    mixed = torch.cat([(w @ p).transpose(0, 1) for w, p in zip(weights, parts, strict=True)])
    ours = attend(qkv, layout, window=window)[: layout.total]
    torch.testing.assert_close(mixed, ours, atol=1e-5, rtol=1e-4)


def test_a_trace_without_weights_collects_none() -> None:
    layer, x, sight = Attention(16, 2, 0.0), torch.randn(5, 16), Sight(Packed.of([2, 3]))
    full, bare = Trace(), Trace(weights=False)
    torch.testing.assert_close(layer(x, sight, bare), layer(x, sight, full), atol=0, rtol=0)
    assert [w.shape for w in full.attention[0]] == [(2, 2, 2), (2, 3, 3)]
    assert full.heads[0].shape == (5, 2, 8)
    assert bare.attention == bare.heads == []


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_varlen_equals_the_formula_on_cuda(sizes: list[int]) -> None:
    qkv, layout = inputs(sizes)
    moved = qkv.to("cuda", torch.bfloat16)
    for window in WINDOWS:
        ours = Varlen()(moved, layout.to("cuda"), window=window, dropout=0.0).float().cpu()
        torch.testing.assert_close(ours, reference(qkv, layout, window), atol=2e-2, rtol=2e-2)
