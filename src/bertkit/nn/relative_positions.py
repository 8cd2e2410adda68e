"""Relative positions: a learned number for each head and distance, added to attention's scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bertkit.batch import Bucket
from bertkit.nn.attention_context import Bias
from bertkit.nn.embedding import EmbeddingTable

MAX_DISTANCE = 128
"""Distances from here on share a bucket."""


class RelativeBias(nn.Module):
    """The bias of a forward pass, which all layers share. Source: Raffel et al. 2020, section 2.1;
    Song et al. 2020 (MPNet). With `causal` no key lies ahead, and no bucket is for one.
    """

    def __init__(self, buckets: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.table = EmbeddingTable(buckets, heads)

    def forward(self) -> Bias:
        kept: dict[tuple[int, int], Tensor] = {}

        def bias(q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor:
            size = queries.length, keys.length
            if torch.compiler.is_exporting():  # sizes are no numbers yet
                return self.between(*size)
            if size not in kept:
                kept[size] = self.between(*size)
            return kept[size]

        return bias

    def between(self, queries: int, keys: int) -> Tensor:
        """Of every query and key of a sequence. Shapes: (1, H, queries, keys)."""
        device = self.table.weight.device
        return self.of(*(torch.arange(n, device=device)[None] for n in (queries, keys)))

    def of(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Of queries and keys at these places. Shapes: (R, Q), (R, L) -> (R, H, Q, L)."""
        distance = keys[:, None] - queries[:, :, None]
        numbers = bucketed(distance, self.table.num_embeddings, causal=self.causal)
        bias: Tensor = self.table(numbers.flatten()).unflatten(0, numbers.shape)
        return bias.permute(0, 3, 1, 2)


def bucketed(distance: Tensor, buckets: int, *, causal: bool = False) -> Tensor:
    """Return the bucket of each distance: half of the buckets are for keys ahead, if there are any.

    The nearer half of them have one distance each; the others, up to `MAX_DISTANCE`, are equally
    wide in its logarithm.
    """
    half = buckets if causal else buckets // 2
    exact = half // 2
    far = (-distance).clamp(min=0) if causal else distance.abs()
    # in this order of operations: at a bucket's edge another rounds to its neighbor
    share = (far.clamp(min=1).float() / exact).log() / math.log(MAX_DISTANCE / exact)
    wide = exact + (share * (half - exact)).long()
    near: Tensor = torch.where(far < exact, far, wide.clamp(max=half - 1))
    return near if causal else near.add(distance > 0, alpha=half)
