"""Cross-entropy over a large vocabulary, without keeping the logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS = 512
"""Rows of logits that exist at one time; more gain nothing on CPUs (docs/log.md)."""


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The summed cross-entropy of `x @ weight.T + bias`, and how many targets are the likeliest.

    The gradients are computed with the loss, a few rows at a time, so the (M, V) logits are never
    kept; the softmax is in fp32 whatever the weights are.
    Shapes: x (M, D), weight (V, D), bias (V,), targets (M,) -> two scalars, the loss in fp32.
    """
    loss: Tensor
    loss, correct = _LinearCrossEntropy.apply(x, weight, bias, targets)  # type: ignore[no-untyped-call]
    return loss, correct


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        learns = any(ctx.needs_input_grad)
        loss, correct = x.new_zeros((), dtype=torch.float32), targets.new_zeros(())
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=x.device)
        grad_bias = torch.zeros(bias.shape, dtype=torch.float32, device=x.device)
        for start in range(0, x.shape[0], ROWS):
            rows, right = x[start : start + ROWS], targets[start : start + ROWS]
            p = torch.softmax(F.linear(rows, weight, bias), -1, dtype=torch.float32)  # (rows, V)
            likely = p.gather(1, right[:, None])
            loss -= likely.clamp_min(torch.finfo(torch.float32).tiny).log().sum()
            correct += (p.argmax(-1) == right).sum()
            if learns:
                p.scatter_add_(1, right[:, None], -torch.ones_like(likely))  # softmax - one-hot
                grad_bias += p.sum(0)
                p = p.to(x.dtype)
                torch.mm(p, weight, out=grad_x[start : start + ROWS])
                grad_weight += p.T @ rows
        ctx.save_for_backward(grad_x, grad_weight.to(weight.dtype), grad_bias.to(bias.dtype))
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        return *(g * grad.to(g.dtype) for g in ctx.saved_tensors), None
