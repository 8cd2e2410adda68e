"""LayerNorm and RMSNorm with gradients that are accumulated in fp32."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.nn.precision import CHUNK_VALUES


class LayerNorm(nn.LayerNorm):
    """Layer normalization. Ba et al. 2016. Shapes: (…, D) -> (…, D).

    In bf16 on CPUs, torch's LayerNorm accumulates the gradients of the weight and the bias in bf16.
    A sum over ten thousand tokens then has an error of about 10 % (notes/2026-11.md). This class
    accumulates them in fp32.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.bfloat16 or x.device.type != "cpu" or not torch.is_grad_enabled():
            return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        out: Tensor = _LayerNorm.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        return out


class RMSNorm(nn.Module):
    """Root mean square normalization. Shapes: (…, D) -> (…, D).

    Source: Zhang & Sennrich 2019, equation 4.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        # This single operation also computes in fp32.
        if not torch.is_grad_enabled():
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        x_fp32 = x.float()
        scale = torch.rsqrt(x_fp32.pow(2).mean(-1, keepdim=True) + self.eps)
        return (x_fp32 * scale * self.weight.float()).to(x.dtype)


class _LayerNorm(torch.autograd.Function):
    """LayerNorm with a gradient that is computed in fp32, for some rows at a time."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:  # type: ignore[no-untyped-def]
        affine = weight.float(), None if bias is None else bias.float()
        out, mean, scale = torch.native_layer_norm(x, weight.shape, *affine, eps)
        ctx.save_for_backward(x, mean, scale, *affine)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        x, mean, scale, weight, bias = ctx.saved_tensors
        grad_x = torch.empty(x.shape, dtype=x.dtype)
        sums = torch.zeros(2, len(weight))
        rows = max(1, CHUNK_VALUES // len(weight))
        parts = (t.flatten(0, -2).split(rows) for t in (grad_x, grad, x, mean, scale))
        for target, *(inputs, grads_out, m, s) in zip(*parts, strict=True):
            mask = [True, True, bias is not None]
            grads = torch.ops.aten.native_layer_norm_backward(
                inputs.float(), grads_out.float(), weight.shape, m, s, weight, bias, mask
            )
            target.copy_(grads[0])
            for total, more in zip(sums, grads[1:], strict=True):
                if more is not None:
                    total += more
        grad_weight, grad_bias = sums.to(x.dtype)
        return grad_x, grad_weight, None if bias is None else grad_bias, None
