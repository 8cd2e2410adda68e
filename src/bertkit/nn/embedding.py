"""Vectors by id or by position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertkit.nn.rotary_positions import angles


class EmbeddingTable(nn.Embedding):
    """A learned vector for each id. Shapes: (N,) -> (N, E).

    In bf16 on CPUs torch's own adds up the gradient of a vector in bf16, where that of a segment,
    which half of the tokens have, is a tenth off (notes/2026-11.md). While it is `sparse`, as torch
    has it, the gradient holds the vectors that were looked up alone.
    """

    def reset_parameters(self) -> None:
        """Draw the vectors, where there is storage: a draw without imports torch's compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, ids: Tensor) -> Tensor:
        if self.weight.dtype != torch.bfloat16 or self.weight.device.type != "cpu":
            return super().forward(ids)
        vectors: Tensor = _Lookup.apply(self.weight, ids, self.sparse)  # type: ignore[no-untyped-call]
        return vectors


class _Lookup(torch.autograd.Function):
    """The same vectors; the gradients of those that were looked up add up in fp32."""

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
            few = torch.sparse_coo_tensor(used[None], sums, ctx.shape, check_invariants=True)
            return few, None, None
        return grad.new_zeros(ctx.shape).index_copy_(0, used, sums), None, None


def hold_at_zero(table: nn.Embedding, row: int) -> None:
    """Make one vector zero, and let nothing move it, whatever else the weights are used for."""

    def without(gradient: Tensor) -> Tensor:
        return gradient.index_fill(0, torch.tensor([row], device=gradient.device), 0.0)

    with torch.no_grad():
        table.weight[row] = 0.0
    table.weight.register_hook(without)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sines and cosines of each position. Shapes: (N,) -> (N, E).

    Source: Vaswani et al. 2017, section 3.5; sines stand before cosines, as in tensor2tensor.
    """
    turns = angles(positions, 10_000.0, width + width % 2)
    return torch.cat([turns.sin(), turns.cos()], -1)[:, :width]
