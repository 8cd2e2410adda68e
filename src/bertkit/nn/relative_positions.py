"""Relative position bias: a learned value for each head and distance is added to the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bertkit.batch import Bucket
from bertkit.nn.attention_context import Bias
from bertkit.nn.embedding import EmbeddingTable

MAX_DISTANCE = 128
"""All distances from this one on share a bucket."""


class RelativeBias(nn.Module):
    """Relative position bias, which all layers share.

    Source: Raffel et al. 2020, section 2.1; Song et al. 2020 (MPNet).

    Args:
        buckets: Number of distance buckets.
        heads: Number of attention heads.
        causal: Whether attention is causal. No buckets are then needed for keys after the query.
    """

    def __init__(self, buckets: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.table = EmbeddingTable(buckets, heads)

    def forward(self) -> Bias:
        biases: dict[tuple[int, int], Tensor] = {}

        def bias(q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor:
            size = queries.length, keys.length
            # During an export, sizes are symbolic and cannot be keys of the cache.
            if torch.compiler.is_exporting():
                return self.bias_matrix(*size)
            if size not in biases:
                biases[size] = self.bias_matrix(*size)
            return biases[size]

        return bias

    def bias_matrix(self, queries: int, keys: int) -> Tensor:
        """Return the bias for all pairs of a query and a key in a sequence.

        Shapes:
            returns: (1, H, queries, keys).
        """
        device = self.table.weight.device
        return self.bias_at(*(torch.arange(n, device=device)[None] for n in (queries, keys)))

    def bias_at(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias for all pairs of a query and a key at these positions.

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
    side, the first half of the buckets contain one distance each. The other buckets have equal
    width in the logarithm of the distance, up to `MAX_DISTANCE`.
    """
    half = buckets if causal else buckets // 2
    exact = half // 2
    far = (-distance).clamp(min=0) if causal else distance.abs()
    # The order of these operations matters. At the edge of a bucket, another order could round to
    # the adjacent bucket.
    fraction = (far.clamp(min=1).float() / exact).log() / math.log(MAX_DISTANCE / exact)
    log_bucket = exact + (fraction * (half - exact)).long()
    bucket: Tensor = torch.where(far < exact, far, log_bucket.clamp(max=half - 1))
    return bucket if causal else bucket.add(distance > 0, alpha=half)
