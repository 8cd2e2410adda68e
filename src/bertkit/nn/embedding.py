"""What a token is before any context: piece + position + segment. Devlin et al. 2019, figure 2."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.nn.dropout import Dropout
from bertkit.nn.norm import LayerNorm


class Table(nn.Embedding):
    """A learned vector for each id. Shapes: (N,) -> (N, E).

    In bf16 on CPUs torch's own adds up the gradient of a vector in bf16, where that of a segment,
    which half of the tokens have, is a tenth off (docs/log.md).
    """

    def forward(self, ids: Tensor) -> Tensor:
        if self.weight.dtype != torch.bfloat16 or self.weight.device.type != "cpu":
            return super().forward(ids)
        found: Tensor = _Lookup.apply(self.weight, ids)  # type: ignore[no-untyped-call]
        return found


class _Lookup(torch.autograd.Function):
    """The same vectors; the gradients of those that were looked up add up in fp32."""

    @staticmethod
    def forward(ctx, weight: Tensor, ids: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(ids)
        ctx.shape = weight.shape
        return weight.index_select(0, ids)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (ids,) = ctx.saved_tensors
        used, places = ids.unique(return_inverse=True)
        sums = torch.ops.aten.embedding_dense_backward(
            grad.float(), places, len(used), padding_idx=-1, scale_grad_by_freq=False
        )
        return grad.new_zeros(ctx.shape).index_copy_(0, used, sums.to(grad.dtype)), None


class Embedding(nn.Module):
    """The sum of three vectors of `width`, normalized, and widened. Shapes: (N,) ids -> (N, D).

    Without `positions` or `types` there are fewer. Source of the widening: Lan et al. 2020,
    section 3.1.
    """

    def __init__(
        self,
        *,
        vocab: int,
        width: int,
        hidden: int,
        positions: int,
        types: int,
        norm_eps: float,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = Table(vocab, width)
        self.positions = Table(positions, width) if positions else None
        self.types = Table(types, width) if types else None
        self.norm = LayerNorm(width, norm_eps, bias=bias)
        self.dropout = Dropout(dropout)
        self.widen = nn.Linear(width, hidden) if width != hidden else None

    def parts(self, batch: Batch) -> dict[str, Tensor]:
        """What is added up. Shapes: (N, E) each, or (E,) where it is the same for all tokens."""
        found: dict[str, Tensor] = {"token": self.tokens(batch.ids)}
        if self.positions is not None:
            found["position"] = self.positions(batch.layout.positions)
        if self.types is not None:
            one = self.types.num_embeddings == 1  # whatever the segment (RoBERTa)
            found["segment"] = self.types.weight[0] if one else self.types(batch.types)
        return found

    def added(self, batch: Batch) -> Tensor:
        """The sum, before it is normalized. Shapes: (N, E)."""
        return functools.reduce(torch.add, self.parts(batch).values())

    def forward(self, batch: Batch) -> Tensor:
        x: Tensor = self.dropout(self.norm(self.added(batch)))
        return x if self.widen is None else self.widen(x)
