"""Relative position bias: a learned value per head and distance, added to the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bertkit.batch import Bucket
from bertkit.nn.attention_context import Bias
from bertkit.nn.embedding import EmbeddingTable

MAX_DISTANCE = 128
"""Distance from which all distances share a bucket."""


class RelativeBias(nn.Module):
    """Relative position bias, which all layers share.

    Source: Raffel et al. 2020, section 2.1; Song et al. 2020 (MPNet).

    Args:
        buckets: Number of buckets of distances.
        heads: Number of heads.
        causal: Whether keys never follow their query, so that no buckets are needed for them.
    """

    def __init__(self, buckets: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.table = EmbeddingTable(buckets, heads)

    def forward(self) -> Bias:
        biases: dict[tuple[int, int], Tensor] = {}

        def bias(q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor:
            size = queries.length, keys.length
            # Sizes are symbolic during export.
            if torch.compiler.is_exporting():
                return self.bias_matrix(*size)
            if size not in biases:
                biases[size] = self.bias_matrix(*size)
            return biases[size]

        return bias

    def bias_matrix(self, queries: int, keys: int) -> Tensor:
        """Return the bias of all queries and keys of a sequence. Shapes: (1, H, queries, keys)."""
        device = self.table.weight.device
        return self.bias_at(*(torch.arange(n, device=device)[None] for n in (queries, keys)))

    def bias_at(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias of queries and keys at the given positions.

        Args:
            queries: Positions of the queries.
            keys: Positions of the keys.

        Shapes:
            queries: (R, Q).
            keys: (R, L).
            returns: (R, H, Q, L).
        """
        distance = keys[:, None] - queries[:, :, None]
        indices = bucket_distances(distance, self.table.num_embeddings, causal=self.causal)
        bias: Tensor = self.table(indices.flatten()).unflatten(0, indices.shape)
        return bias.permute(0, 3, 1, 2)


def bucket_distances(distance: Tensor, buckets: int, *, causal: bool = False) -> Tensor:
    """Return the bucket of each distance.

    Unless `causal` is set, half of the buckets are for keys that come after the query. On each
    side, the first half of the buckets contains one distance each. The others have equal width in
    the logarithm of the distance, up to `MAX_DISTANCE`.
    """
    half = buckets if causal else buckets // 2
    exact = half // 2
    far = (-distance).clamp(min=0) if causal else distance.abs()
    # At the edge of a bucket, another order of operations can round to the adjacent bucket.
    fraction = (far.clamp(min=1).float() / exact).log() / math.log(MAX_DISTANCE / exact)
    log_bucket = exact + (fraction * (half - exact)).long()
    bucket: Tensor = torch.where(far < exact, far, log_bucket.clamp(max=half - 1))
    return bucket if causal else bucket.add(distance > 0, alpha=half)
