"""Embedding tables and sinusoidal positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.nn.rotary_positions import angles


class EmbeddingTable(nn.Embedding):
    """Table with a learned vector for each id, and accurate gradients. Shapes: (N,) -> (N, E).

    In bf16 on CPUs, torch's embedding accumulates the gradient of a vector in bf16. For a segment
    embedding, whose vectors are each used by half of the tokens, the result is wrong by a tenth
    (notes/2026-11.md). As in torch, `sparse` restricts the gradient to the vectors that were used.
    """

    def reset_parameters(self) -> None:
        """Initialize the vectors, unless they are on the meta device.

        On the meta device, random initialization would import torch's compiler.
        """
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, ids: Tensor) -> Tensor:
        if self.weight.dtype != torch.bfloat16 or self.weight.device.type != "cpu":
            return super().forward(ids)
        vectors: Tensor = _Lookup.apply(self.weight, ids, self.sparse)  # type: ignore[no-untyped-call]
        return vectors


class _Lookup(torch.autograd.Function):
    """Embedding lookup whose gradient is accumulated in fp32."""

    @staticmethod
    def forward(ctx, weight: Tensor, ids: Tensor, sparse: bool) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(ids)
        ctx.shape, ctx.sparse = weight.shape, sparse
        return weight.index_select(0, ids)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        (ids,) = ctx.saved_tensors
        used, rows = ids.unique(return_inverse=True)
        sums = torch.ops.aten.embedding_dense_backward(
            grad.float(), rows, len(used), padding_idx=-1, scale_grad_by_freq=False
        )
        sums = sums.to(grad.dtype)
        if ctx.sparse:
            gradient = torch.sparse_coo_tensor(used[None], sums, ctx.shape, check_invariants=True)
            return gradient, None, None
        return grad.new_zeros(ctx.shape).index_copy_(0, used, sums), None, None


def freeze_at_zero(table: nn.Embedding, row: int) -> None:
    """Set a vector of an embedding to zero, and its gradient as well, so that it stays zero.

    This also works if another layer uses the same weights.

    Args:
        table: The embedding.
        row: Index of the vector.
    """

    def clear_row(gradient: Tensor) -> Tensor:
        return gradient.index_fill(0, torch.tensor([row], device=gradient.device), 0.0)

    with torch.no_grad():
        table.weight[row] = 0.0
    table.weight.register_hook(clear_row)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Compute the sinusoidal encoding of each position. Shapes: (N,) -> (N, E).

    Source: Vaswani et al. 2017, section 3.5. As in tensor2tensor, all sines precede all cosines.
    """
    radians = angles(positions, 10_000.0, width + width % 2)
    return torch.cat([radians.sin(), radians.cos()], -1)[:, :width]
