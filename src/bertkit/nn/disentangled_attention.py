"""Disentangled attention: learned vectors for the distances between tokens add to the scores.

Source: He et al. 2021 (DeBERTa), section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bertkit.batch import Bucket
from bertkit.nn.attention_context import Bias
from bertkit.nn.dropout import Dropout
from bertkit.nn.embedding import EmbeddingTable
from bertkit.nn.padding import pad_bucket

SCORE_TERMS = 3
"""Number of terms in a score: content to content, content to position, and position to content.

Each term is divided by √(3 K).
"""


class DistanceTable(nn.Module):
    """Table of normalized vectors, one for each bucket of distances, which all layers share.

    On each side, every distance up to half of `buckets` has its own bucket. The other half of the
    buckets have equal width in the logarithm of the distance, up to `farthest`. Source: version 2
    of microsoft/DeBERTa, which introduced buckets and the norm.

    Args:
        buckets: Number of buckets on each side.
        farthest: Distance that the last bucket contains.
        width: Size of the vectors.
        dropout: Dropout probability of the vectors.
        norm: Normalization layer.
    """

    def __init__(
        self, buckets: int, farthest: int, width: int, dropout: float, norm: nn.Module
    ) -> None:
        super().__init__()
        self.buckets, self.farthest = buckets, farthest
        self.table = EmbeddingTable(2 * buckets, width)
        self.norm, self.dropout = norm, Dropout(dropout)

    def forward(self) -> ForwardDistances:
        return ForwardDistances(self, self.norm(self.table.weight))

    def rows(self, distances: Tensor) -> Tensor:
        """Return the row of the table for each distance: query position minus key position.

        Distances beyond the last bucket use the row of the last bucket.
        """
        indices = bucket_distances(distances, self.buckets, self.farthest) + self.buckets
        return indices.clamp(0, 2 * self.buckets - 1)


@dataclass(frozen=True)
class ForwardDistances:
    """Distance vectors in one forward pass (see `Distances`). Shapes: vectors (2 buckets, D)."""

    table: DistanceTable
    vectors: Tensor
    _rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def apply_dropout(self) -> Tensor:
        """Return the vectors after dropout. Each layer calls this, so that its dropout differs."""
        vectors: Tensor = self.table.dropout(self.vectors)
        return vectors

    def bias(self, queries_keys: Tensor, scale: float) -> Bias:
        """Return the function that computes the bias of a layer's scores.

        Args:
            queries_keys: Projections of the vectors by the layer (`Attention.project_distances`).
            scale: Factor that multiplies the dot products.

        Shapes:
            queries_keys: (2 buckets, 2, H, K).
        """
        distance_q, distance_k = (queries_keys * scale).unbind(1)

        def bias(q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor:
            back, ahead = self._rows_of_length(queries.length)
            to_position = _score_distances(q, queries, distance_k[back])
            to_content = _score_distances(kv[:, 0], keys, distance_q[ahead])
            return to_position + to_content.transpose(-1, -2)

        return bias

    def _rows_of_length(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the table rows for all distances from queries to keys, and from keys to queries.

        They are in the order that `_score_distances` expects.

        Shapes:
            returns: (2 T,) and (2 T,).
        """
        cached = None if torch.compiler.is_exporting() else self._rows.get(length)
        if cached is not None:
            return cached
        ahead = torch.arange(-length, length, device=self.vectors.device)
        rows = self.table.rows(-ahead), self.table.rows(ahead)
        # During an export, sizes are symbolic and cannot be keys of the cache.
        if not torch.compiler.is_exporting():
            self._rows[length] = rows
        return rows


def _score_distances(x: Tensor, bucket: Bucket, vectors: Tensor) -> Tensor:
    """Compute the dot product of each token's `x` with the vector for its distance to each token.

    Args:
        x: Queries or keys of the tokens.
        bucket: Bucket of sequences to compute.
        vectors: Distance vectors. Index T - i + j has the vector from token i to token j.

    Shapes:
        x: (R, H, K).
        vectors: (2 T, H, K).
        returns: (S, H, T, T).
    """
    length = bucket.length
    x = pad_bucket(x[bucket.start : bucket.start + bucket.tokens], bucket)
    # (H, S T, 2 T)
    products = x.flatten(0, 1).transpose(0, 1) @ vectors.permute(1, 2, 0)
    products = products.unflatten(1, (bucket.sequences, length)).transpose(0, 1)
    # Row i must be shifted to the left by i columns. Splitting the flat values into rows that are
    # one value shorter has this effect without a gather.
    flat = products.flatten(-2)[..., length:]
    rows: Tensor = flat.unflatten(-1, (length, 2 * length - 1))
    return rows[..., :length]


def bucket_distances(distances: Tensor, buckets: int, farthest: int) -> Tensor:
    """Return the number of each distance's bucket, with the sign of the distance.

    Distances beyond `farthest` result in numbers beyond the last bucket.
    """
    half = buckets // 2
    far = distances.abs().clamp(min=half)
    # The order of these operations matters. At the edge of a bucket, another order could round to
    # the adjacent bucket.
    log_range = torch.log(torch.tensor((farthest - 1) / half))
    bucket = torch.ceil(torch.log(far / half) / log_range * (half - 1)) + half
    signed = (bucket * distances.sign()).long()
    return torch.where(distances.abs() <= half, distances, signed)
