"""Cross-entropy over a large vocabulary, without keeping the logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bertkit.nn.padding import in_tiles
from bertkit.nn.precision import BF16_TILE_ROWS, add_up

LOGITS, LOGITS_OF_GPU = 80 << 20, 512 << 20
"""Bytes of logits that exist at one time, so that memory does not grow with a batch; few of them
keep a GPU waiting for the next."""


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The summed cross-entropy of `x @ weight.T + bias`, and how many targets are the likeliest.

    With `smoothing` that share of each target is spread over all pieces: Szegedy et al. 2016,
    section 7. `z_loss` adds so many times the square of log Z, Z being the sum that softmax divides
    by, which keeps logits small: Chowdhery et al. 2022, section 5. In bf16 what ties after rounding
    counts as likeliest: some per mille too many.

    The gradients are computed with the loss, some rows at a time, so the (M, V) logits are never
    kept. Softmax and sums over rows add up in fp32; chances and gradients are rounded to the type
    of the weights.
    Shapes: x (M, D), weight (V, D), bias (V,), targets (M,) -> two scalars, the loss in fp32.
    """
    loss: Tensor
    loss, correct = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, targets, smoothing, z_loss
    )
    return loss, correct


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        z_loss: float,
    ) -> tuple[Tensor, Tensor]:
        learns = any(ctx.needs_input_grad)
        loss, correct = x.new_zeros((), dtype=torch.float32), targets.new_zeros(())
        x = in_tiles(x)
        grad_x, grad_weight, grad_bias = torch.empty_like(x), None, None
        count = _rows(x, weight)
        for start in range(0, len(targets), count):
            rows, right = x[start : start + count], targets[start : start + count]
            real = len(right)
            logits = F.linear(rows, weight, bias)  # (rows, V)
            if z_loss:  # in bf16 the few per mille that it adds to p would be rounded away
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            p = torch.softmax(logits, -1)
            likely = p[:real].gather(1, right[:, None])
            nats = likely.float().clamp_min(torch.finfo(torch.float32).tiny).log().sum()
            if smoothing:
                wide = logits[:real].float()
                spread = wide.mean(-1).sum() - wide.logsumexp(-1).sum()
                nats = (1 - smoothing) * nats + smoothing * spread
            loss -= nats
            correct += (likely[:, 0] >= _largest(p[:real])).sum()  # in bf16 faster than argmax
            if z_loss:
                log_z = logits.logsumexp(-1)
                loss += z_loss * log_z[:real].square().sum()
            if learns:
                if z_loss:
                    p *= (1.0 + 2.0 * z_loss * log_z)[:, None]
                each = torch.arange(real, device=p.device)
                p[each, right] -= 1.0 - smoothing  # softmax - one-hot
                if smoothing:
                    p -= smoothing / p.shape[1]
                p[real:] = 0
                p = p.to(x.dtype)
                torch.mm(p, weight, out=grad_x[start : start + count])
                if ctx.needs_input_grad[1]:
                    grad_weight = add_up(grad_weight, p.T @ rows)
                if bias is not None and ctx.needs_input_grad[2]:
                    grad_bias = add_up(grad_bias, p.sum(0))
        grads = grad_x[: len(targets)], grad_weight, grad_bias
        ctx.save_for_backward(*(None if g is None else g.to(x.dtype) for g in grads))
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        return *(None if g is None else g * grad.to(g.dtype) for g in ctx.saved_tensors), *[
            None
        ] * 3


def target_logprobs(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """The log-probability of each target, in fp32, without keeping the logits.

    Where gradients are wanted, logits are computed again on the way back, some rows at a time.
    Shapes: x (M, D), weight (V, D), bias (V,), targets (M,) -> (M,).
    """
    count = _rows(x, weight)
    parts = zip(x.split(count), targets.split(count), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([_logprobs(part, weight, bias, wanted) for part, wanted in parts])
    rows = [
        checkpoint(
            _logprobs, part, weight, bias, wanted, use_reentrant=False, preserve_rng_state=False
        )
        for part, wanted in parts
    ]
    return torch.cat(rows)


def _logprobs(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = F.linear(x, weight, bias).float()
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)


def _largest(p: Tensor) -> Tensor:
    """Of each row of chances. Their bits are in the order of the numbers, for none is negative, and
    torch compares 16-bit integers 14 times as fast as bf16 (notes/2026-11.md).
    """
    if p.dtype == torch.bfloat16:
        return p.view(torch.int16).amax(-1).view(p.dtype)
    return p.amax(-1)


def _rows(x: Tensor, weight: Tensor) -> int:
    """How many at a time, in parts of equal size but for the last."""
    most = (LOGITS_OF_GPU if x.is_cuda else LOGITS) // (weight.shape[0] * weight.element_size())
    parts = max(1, -(-len(x) // max(1, most)))
    each = -(-len(x) // parts)
    return max(1, each + -each % BF16_TILE_ROWS)
