"""Relative positions: a learned number for each head and distance, added to attention's scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bertkit.batch import Bucket
from bertkit.nn.context import Bias
from bertkit.nn.embedding import Table

FARTHEST = 128
"""Distances from here on share a bucket."""


class RelativeBias(nn.Module):
    """The bias of a forward pass, which all layers share. Source: Raffel et al. 2020, section 2.1;
    Song et al. 2020 (MPNet)."""

    def __init__(self, buckets: int, heads: int) -> None:
        super().__init__()
        self.table = Table(buckets, heads)

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
        rows = torch.arange(queries, device=device)[:, None]
        numbers = bucketed(torch.arange(keys, device=device) - rows, self.table.num_embeddings)
        bias: Tensor = self.table(numbers.flatten()).unflatten(0, numbers.shape)
        return bias.permute(2, 0, 1).unsqueeze(0)


def bucketed(distance: Tensor, buckets: int) -> Tensor:
    """The bucket of each distance: half of them for keys ahead. The nearer half of each have one
    distance; the others, up to `FARTHEST`, are equally wide in its logarithm."""
    half = buckets // 2
    exact = half // 2
    far = distance.abs()
    # in this order of operations: at a bucket's edge another rounds to its neighbor
    share = (far.clamp(min=1).float() / exact).log() / math.log(FARTHEST / exact)
    wide = exact + (share * (half - exact)).long()
    near: Tensor = torch.where(far < exact, far, wide.clamp(max=half - 1))
    return near.add(distance > 0, alpha=half)
