"""The same numbers as torch's, with sums over tokens that bf16 does not round away."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bertkit.nn import norm
from bertkit.nn.norm import LayerNorm, RMSNorm


def layers(width: int, *, bias: bool = True) -> tuple[LayerNorm, nn.LayerNorm]:
    ours, theirs = LayerNorm(width, 1e-12, bias=bias), nn.LayerNorm(width, 1e-12, bias=bias)
    with torch.no_grad():
        for weight, same in zip(ours.parameters(), theirs.parameters(), strict=True):
            same.copy_(weight.add_(torch.randn_like(weight) * 0.3))
    return ours, theirs


def learned(layer: nn.LayerNorm, x: Tensor, grad: Tensor) -> list[Tensor]:
    """What comes out, and the gradients of x and of the weights."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = layer(x)
    out.backward(grad)
    return [out.detach(), *(t.grad for t in (x, *layer.parameters()) if t.grad is not None)]


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("bias", [True, False])
def test_bf16_gradients_add_up_in_fp32(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "CHUNK_VALUES", 1000)  # several parts, the last one shorter
    x = torch.randn(8192, 16).bfloat16()
    grad = (torch.randn(8192, 16) + 0.2).bfloat16()
    ours, theirs = (layer.bfloat16() for layer in layers(16, bias=bias))
    found, plain = learned(ours, x, grad), learned(theirs, x, grad)
    exact = learned(theirs.double(), x.double(), grad.double())
    assert len(found) == 3 + bias
    assert all(part.dtype == torch.bfloat16 for part in found)
    assert torch.equal(found[0], plain[0])
    assert all(error(a, b) < 0.004 for a, b in zip(found, exact, strict=True))
    # the control: torch's own
    assert all(error(a, b) > 0.03 for a, b in zip(plain[2:], exact[2:], strict=True))


def test_fp32_is_torchs_own() -> None:
    x, grad = torch.randn(300, 16), torch.randn(300, 16)
    ours, theirs = layers(16)
    for a, b in zip(learned(ours, x, grad), learned(theirs, x, grad), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0, 16), (1, 16), (5, 3, 16)])
def test_every_shape(shape: tuple[int, ...]) -> None:
    ours, theirs = (layer.bfloat16() for layer in layers(16))
    x, grad = torch.randn(shape).bfloat16(), torch.ones(()).bfloat16().expand(shape)
    for a, b in zip(learned(ours, x, grad), learned(theirs, x, grad), strict=True):
        torch.testing.assert_close(a, b, atol=0.02, rtol=0.02)


def test_frozen_weights_have_no_gradient() -> None:
    layer, _ = layers(16)
    layer = layer.bfloat16().requires_grad_(False)
    out, grad_x = learned(layer, torch.randn(4, 16).bfloat16(), torch.ones(4, 16).bfloat16())
    assert out.shape == grad_x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_is_the_formula_with_gradients_and_without(dtype: torch.dtype) -> None:
    ours, x = RMSNorm(24, 1e-5).to(dtype), (torch.randn(7, 24) * 3 + 1).to(dtype)
    with torch.no_grad():
        ours.weight.add_(torch.randn(24).to(dtype) * 0.3)
        wide, weight = x.double(), ours.weight.double()
        expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
        without = ours(x)
    fp32 = dtype == torch.float32
    close = {"atol": 1e-5 if fp32 else 1e-2, "rtol": 1e-5 if fp32 else 8e-3}
    for found in (ours(x), without):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, **close)
    centered = nn.functional.layer_norm(x, (24,), ours.weight)
    assert not torch.allclose(centered, without, atol=0.1)  # the control: no mean is taken off
