"""Cross-entropy over a large vocabulary, without storing all logits at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.nn.padding import pad_to_tiles
from bertkit.nn.precision import BF16_TILE_ROWS, add_up

MAX_BYTES, MAX_BYTES_GPU = 80 << 20, 512 << 20
"""Maximum size of the logits in memory at one time, in bytes, on a CPU and on a GPU.

Because of this limit, memory does not grow with the batch size. The limit is higher for a GPU,
because it would be idle between smaller parts.
"""


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute the summed cross-entropy of a linear layer, and the number of correct predictions.

    The logits are `x @ weight.T + bias`. The loss and its gradients are computed together for some
    rows at a time, so that all (M, V) logits are never in memory. Softmax and sums over rows
    accumulate in fp32. Probabilities and gradients are rounded to the dtype of the weights. In
    bf16, a target whose rounded probability equals the maximum counts as correct. This adds a few
    per mille to the number of correct predictions.

    Args:
        x: Input vectors of the linear layer.
        weight: Weights of the linear layer: the output embeddings.
        bias: Bias of the linear layer.
        targets: Target id for each row of `x`.
        smoothing: Fraction of each target's probability that is distributed over the vocabulary
            (label smoothing, Szegedy et al. 2016, section 7).
        z_loss: Weight of a loss that keeps logits small: the square of log Z, in which Z is the
            denominator of the softmax (Chowdhery et al. 2022, section 5).

    Returns:
        The loss in fp32, and the number of rows whose target has the highest probability.

    Shapes:
        x: (M, D).
        weight: (V, D).
        bias: (V,).
        targets: (M,).
        returns: two scalars.
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
        needs_gradient = any(ctx.needs_input_grad)
        loss, correct = x.new_zeros((), dtype=torch.float32), targets.new_zeros(())
        x = pad_to_tiles(x)
        grad_x, grad_weight, grad_bias = torch.empty_like(x), None, None
        count = rows_per_part(x, weight)
        for start in range(0, len(targets), count):
            part, labels = x[start : start + count], targets[start : start + count]
            size = len(labels)
            # (rows, V)
            logits = F.linear(part, weight, bias)
            # The z-loss changes p by a few per mille, which rounding to bf16 would remove.
            if z_loss:
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            p = torch.softmax(logits, -1)
            target_p = p[:size].gather(1, labels[:, None])
            nats = target_p.float().clamp_min(torch.finfo(torch.float32).tiny).log().sum()
            if smoothing:
                logits_fp32 = logits[:size].float()
                uniform = logits_fp32.mean(-1).sum() - logits_fp32.logsumexp(-1).sum()
                nats = (1 - smoothing) * nats + smoothing * uniform
            loss -= nats
            # In bf16, this is faster than argmax.
            correct += (target_p[:, 0] >= _row_max(p[:size])).sum()
            if z_loss:
                log_z = logits.logsumexp(-1)
                loss += z_loss * log_z[:size].square().sum()
            if needs_gradient:
                if z_loss:
                    p *= (1.0 + 2.0 * z_loss * log_z)[:, None]
                row_ids = torch.arange(size, device=p.device)
                # The gradient is softmax - one-hot.
                p[row_ids, labels] -= 1.0 - smoothing
                if smoothing:
                    p -= smoothing / p.shape[1]
                p[size:] = 0
                p = p.to(x.dtype)
                torch.mm(p, weight, out=grad_x[start : start + count])
                if ctx.needs_input_grad[1]:
                    grad_weight = add_up(grad_weight, p.T @ part)
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


def _row_max(p: Tensor) -> Tensor:
    """Return the maximum of each row of probabilities.

    Nonnegative bf16 values have the same order as their bits, read as integers. torch compares
    16-bit integers 14 times as fast as bf16 values (notes/2026-11.md).
    """
    if p.dtype == torch.bfloat16:
        return p.view(torch.int16).amax(-1).view(p.dtype)
    return p.amax(-1)


def rows_per_part(x: Tensor, weight: Tensor) -> int:
    """Return the number of rows to compute at once, so that all parts have nearly equal sizes."""
    limit = (MAX_BYTES_GPU if x.is_cuda else MAX_BYTES) // (weight.shape[0] * weight.element_size())
    parts = max(1, -(-len(x) // max(1, limit)))
    rows = -(-len(x) // parts)
    return max(1, rows + -rows % BF16_TILE_ROWS)
