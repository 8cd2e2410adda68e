"""Token embeddings and sinusoidal positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.nn.rotary_positions import angles


class EmbeddingTable(nn.Embedding):
    """Learned vector for each id. Shapes: (N,) -> (N, E).

    In bf16 on CPUs, torch's embedding accumulates the gradient of a vector in bf16. For a segment
    embedding, which half of the tokens have, the result is a tenth off (notes/2026-11.md). Like in
    torch, `sparse` restricts the gradient to the vectors that were looked up.
    """

    def reset_parameters(self) -> None:
        """Initialize the vectors, unless they are on the device meta.

        On that device, random initialization would import torch's compiler.
        """
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, ids: Tensor) -> Tensor:
        if self.weight.dtype != torch.bfloat16 or self.weight.device.type != "cpu":
            return super().forward(ids)
        vectors: Tensor = _Lookup.apply(self.weight, ids, self.sparse)  # type: ignore[no-untyped-call]
        return vectors


class _Lookup(torch.autograd.Function):
    """Embedding lookup whose gradient accumulates in fp32."""

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
    """Set a vector to zero, and keep its gradient zero even if the weights are shared.

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
    """Return sines and cosines of each position. Shapes: (N,) -> (N, E).

    Source: Vaswani et al. 2017, section 3.5. Sines precede cosines, like in tensor2tensor.
    """
    radians = angles(positions, 10_000.0, width + width % 2)
    return torch.cat([radians.sin(), radians.cos()], -1)[:, :width]
