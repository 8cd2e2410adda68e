"""Norms match torch and accumulate bf16 gradients in fp32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bertkit.nn import norm
from bertkit.nn.norm import LayerNorm, RMSNorm


def layers(width: int, *, bias: bool = True) -> tuple[LayerNorm, nn.LayerNorm]:
    bertkit_norm, torch_norm = (
        LayerNorm(width, 1e-12, bias=bias),
        nn.LayerNorm(width, 1e-12, bias=bias),
    )
    with torch.no_grad():
        for weight, torch_weight in zip(
            bertkit_norm.parameters(), torch_norm.parameters(), strict=True
        ):
            torch_weight.copy_(weight.add_(torch.randn_like(weight) * 0.3))
    return bertkit_norm, torch_norm


def output_and_gradients(layer: nn.LayerNorm, x: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the output and the gradients of x and of the weights."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    out = layer(x)
    out.backward(grad)
    return [out.detach(), *(t.grad for t in (x, *layer.parameters()) if t.grad is not None)]


def error(actual: Tensor, exact: Tensor) -> float:
    return float((actual.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("bias", [True, False])
def test_bf16_gradients_accumulate_in_fp32(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "CHUNK_VALUES", 1000)  # several parts, the last one shorter
    x = torch.randn(8192, 16).bfloat16()
    grad = (torch.randn(8192, 16) + 0.2).bfloat16()
    bertkit_norm, torch_norm = (layer.bfloat16() for layer in layers(16, bias=bias))
    actual, plain = (
        output_and_gradients(bertkit_norm, x, grad),
        output_and_gradients(torch_norm, x, grad),
    )
    exact = output_and_gradients(torch_norm.double(), x.double(), grad.double())
    assert len(actual) == 3 + bias
    assert all(part.dtype == torch.bfloat16 for part in actual)
    assert torch.equal(actual[0], plain[0])
    assert all(error(a, b) < 0.004 for a, b in zip(actual, exact, strict=True))
    # the control: torch.nn.LayerNorm
    assert all(error(a, b) > 0.03 for a, b in zip(plain[2:], exact[2:], strict=True))


def test_fp32_matches_torch() -> None:
    x, grad = torch.randn(300, 16), torch.randn(300, 16)
    bertkit_norm, torch_norm = layers(16)
    for a, b in zip(
        output_and_gradients(bertkit_norm, x, grad),
        output_and_gradients(torch_norm, x, grad),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0, 16), (1, 16), (5, 3, 16)])
def test_any_shape_matches_torch(shape: tuple[int, ...]) -> None:
    bertkit_norm, torch_norm = (layer.bfloat16() for layer in layers(16))
    x, grad = torch.randn(shape).bfloat16(), torch.ones(()).bfloat16().expand(shape)
    for a, b in zip(
        output_and_gradients(bertkit_norm, x, grad),
        output_and_gradients(torch_norm, x, grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=0.02, rtol=0.02)


def test_frozen_weights_get_no_gradient() -> None:
    layer, _ = layers(16)
    layer = layer.bfloat16().requires_grad_(False)
    out, grad_x = output_and_gradients(
        layer, torch.randn(4, 16).bfloat16(), torch.ones(4, 16).bfloat16()
    )
    assert out.shape == grad_x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_matches_formula(dtype: torch.dtype) -> None:
    rms_norm, x = RMSNorm(24, 1e-5).to(dtype), (torch.randn(7, 24) * 3 + 1).to(dtype)
    with torch.no_grad():
        rms_norm.weight.add_(torch.randn(24).to(dtype) * 0.3)
        wide, weight = x.double(), rms_norm.weight.double()
        expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
        without = rms_norm(x)
    fp32 = dtype == torch.float32
    close = {"atol": 1e-5 if fp32 else 1e-2, "rtol": 1e-5 if fp32 else 8e-3}
    for actual in (rms_norm(x), without):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), expected, **close)
    centered = nn.functional.layer_norm(x, (24,), rms_norm.weight)
    assert not torch.allclose(centered, without, atol=0.1)  # the control: RMSNorm subtracts no mean
