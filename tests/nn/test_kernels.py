"""Every kernel computes the same attention, whatever a sequence is packed with."""

import itertools

import pytest
import torch
from torch import Tensor

from bertkit.batch import Packed
from bertkit.nn.attention import SHORT, Attention, Trace, attend, attention_weights
from bertkit.nn.kernels import Bmm, Fused, Kernel, Varlen

KERNELS: list[Kernel] = [Bmm(), Fused(), Varlen()]
LAYOUTS = {
    "equal": [7, 7, 7],
    "near equal": [17, 20, 32],
    "mixed": [1, 2, 15, 16, 17, 40, 190, 192],
    "long": [193, 210, 400],
    "both sides of the choice": [5, 100, 192, 193, 250],
}


def reference(q: Tensor, k: Tensor, v: Tensor, layout: Packed) -> Tensor:
    """Softmax attention written out, one sequence and head at a time."""
    out = torch.empty_like(q)
    for start, end in itertools.pairwise(layout.starts.tolist()):
        for head in range(q.shape[1]):
            scores = q[start:end, head] @ k[start:end, head].T / q.shape[-1] ** 0.5
            out[start:end, head] = torch.softmax(scores, -1) @ v[start:end, head]
    return out


def inputs(sizes: list[int], grad: bool = False) -> tuple[Tensor, Tensor, Tensor, Packed]:
    layout = Packed.of(sizes)
    q, k, v = torch.randn(3, layout.total, 2, 8).unbind(0)
    return (*(x.clone().requires_grad_(grad) for x in (q, k, v)), layout)


@pytest.mark.parametrize("kernel", [None, *KERNELS], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_kernels_equal_the_formula(kernel: Kernel | None, sizes: list[int]) -> None:
    q, k, v, layout = inputs(sizes)
    reason = kernel.refuses(q, layout) if kernel else None
    if reason:
        pytest.skip(reason)
    torch.testing.assert_close(attend(q, k, v, layout, kernel=kernel), reference(q, k, v, layout))


@pytest.mark.parametrize("kernel", KERNELS[:2], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_gradients_equal_the_formula(kernel: Kernel, sizes: list[int]) -> None:
    q, k, v, layout = inputs(sizes, grad=True)
    weight = torch.randn(layout.total, 2, 8)
    ours = torch.autograd.grad((attend(q, k, v, layout, kernel=kernel) * weight).sum(), (q, k, v))
    theirs = torch.autograd.grad((reference(q, k, v, layout) * weight).sum(), (q, k, v))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_control_another_scale_fails() -> None:
    q, k, v, layout = inputs(LAYOUTS["mixed"])
    wrong = attend(q * 1.05, k, v, layout)
    assert (wrong - reference(q, k, v, layout)).abs().max() > 1e-3


@pytest.mark.parametrize("size", [3, 16, 100, SHORT, SHORT + 1, 300])
def test_a_sequence_has_the_same_kernel_alone_and_in_a_batch(size: int) -> None:
    sizes = sorted([1, 10, size, 64, 250])
    q, k, v, layout = inputs(sizes)
    start = int(layout.starts[sizes.index(size)])
    part = slice(start, start + size)
    alone = attend(q[part], k[part], v[part], Packed.of([size]))
    together = attend(q, k, v, layout)[part]
    torch.testing.assert_close(alone, together, atol=1e-6, rtol=1e-5)


def test_a_kernel_that_cannot_serve_says_why() -> None:
    q, k, v, layout = inputs([4])
    assert "CUDA only" in (Varlen().refuses(q, layout) or "")
    with pytest.raises(ValueError, match="CUDA only"):
        attend(q, k, v, layout, kernel=Varlen())


def test_exact_weights_reproduce_the_output() -> None:
    q, k, v, layout = inputs(LAYOUTS["mixed"])
    parts = v.transpose(0, 1).split(list(layout.lengths), 1)
    weights = attention_weights(q, k, layout)
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(w.shape[:2]))
    mixed = torch.cat([(w @ p).transpose(0, 1) for w, p in zip(weights, parts, strict=True)])
    torch.testing.assert_close(mixed, attend(q, k, v, layout), atol=1e-5, rtol=1e-4)


def test_a_trace_without_weights_collects_none() -> None:
    layer, x, layout = Attention(16, 2, 0.0), torch.randn(5, 16), Packed.of([2, 3])
    full, bare = Trace(), Trace(weights=False)
    torch.testing.assert_close(layer(x, layout, bare), layer(x, layout, full), atol=0, rtol=0)
    assert [w.shape for w in full.attention[0]] == [(2, 2, 2), (2, 3, 3)]
    assert full.heads[0].shape == (5, 2, 8)
    assert bare.attention == bare.heads == []


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_varlen_equals_the_formula_on_cuda(sizes: list[int]) -> None:
    q, k, v, layout = inputs(sizes)
    moved = [x.to("cuda", torch.bfloat16) for x in (q, k, v)]
    ours = Varlen()(*moved, layout.to("cuda"), dropout=0.0).float().cpu()
    torch.testing.assert_close(ours, reference(q, k, v, layout), atol=2e-2, rtol=2e-2)
