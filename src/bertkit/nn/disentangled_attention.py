"""Disentangled attention: distances between tokens have vectors of their own, which meet queries
and keys. He et al. 2021 (DeBERTa), section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bertkit.batch import Bucket
from bertkit.nn.attention_context import Bias
from bertkit.nn.dropout import Dropout
from bertkit.nn.embedding import EmbeddingTable
from bertkit.nn.padding import rectangle

SCORE_TERMS = 3
"""Products that a score is the sum of: content to content, content to position, position to
content. Each is divided by √(3 K)."""


class DistanceTable(nn.Module):
    """A vector for each bucket of distances, normalized, which all layers share.

    Up to half of the `buckets` on each side are one distance each. Those of the other half are
    equally wide in its logarithm, up to `farthest`.
    Source: the second version of microsoft/DeBERTa, which added buckets and the norm.
    """

    def __init__(
        self, buckets: int, farthest: int, width: int, dropout: float, norm: nn.Module
    ) -> None:
        super().__init__()
        self.buckets, self.farthest = buckets, farthest
        self.table = EmbeddingTable(2 * buckets, width)
        self.norm, self.dropout = norm, Dropout(dropout)

    def forward(self) -> OfPass:
        return OfPass(self, self.norm(self.table.weight))

    def rows(self, distances: Tensor) -> Tensor:
        """The row of each distance, from a query back to a key: behind the last bucket, its own."""
        numbers = bucketed(distances, self.buckets, self.farthest) + self.buckets
        return numbers.clamp(0, 2 * self.buckets - 1)


@dataclass(frozen=True)
class OfPass:
    """`Distances` of a forward pass. Shapes: vectors (2 buckets, D)."""

    table: DistanceTable
    vectors: Tensor
    _rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def dropped(self) -> Tensor:
        """The vectors as a layer reads them: each layer has its own dropout."""
        vectors: Tensor = self.table.dropout(self.vectors)
        return vectors

    def bias(self, queries_keys: Tensor, scale: float) -> Bias:
        """What a layer adds to its scores, from the queries and keys that it makes of the vectors.

        Shapes: queries_keys (2 buckets, 2, H, K).
        """
        distant_q, distant_k = (queries_keys * scale).unbind(1)

        def bias(q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor:
            back, ahead = self._of(queries.length)
            to_position = _met(q, queries, distant_k[back])
            to_content = _met(kv[:, 0], keys, distant_q[ahead])
            return to_position + to_content.transpose(-1, -2)

        return bias

    def _of(self, length: int) -> tuple[Tensor, Tensor]:
        """The rows of all distances in a sequence, in the order that `_met` wants: of a query's to
        each key, and of a key's to each query. Shapes: (2 T,) both.
        """
        kept = None if torch.compiler.is_exporting() else self._rows.get(length)
        if kept is not None:
            return kept
        ahead = torch.arange(-length, length, device=self.vectors.device)
        rows = self.table.rows(-ahead), self.table.rows(ahead)
        if not torch.compiler.is_exporting():  # where sizes are no numbers yet
            self._rows[length] = rows
        return rows


def _met(x: Tensor, bucket: Bucket, vectors: Tensor) -> Tensor:
    """The product of each token's x with the vector of its distance to each other token.

    Shapes: x (R, H, K), vectors (2 T, H, K), at T - i + j that from token i to j -> (S, H, T, T).
    """
    length = bucket.length
    x = rectangle(x[bucket.start : bucket.start + bucket.tokens], bucket)
    products = x.flatten(0, 1).transpose(0, 1) @ vectors.permute(1, 2, 0)  # (H, S T, 2 T)
    products = products.unflatten(1, (bucket.sequences, length)).transpose(0, 1)
    # row i begins i columns earlier: rows of one number less, read from T on, without a gather
    flat = products.flatten(-2)[..., length:]
    rows: Tensor = flat.unflatten(-1, (length, 2 * length - 1))
    return rows[..., :length]


def bucketed(distances: Tensor, buckets: int, farthest: int) -> Tensor:
    """The bucket of each distance, negative as it is, from 0; those behind `farthest` go on."""
    half = buckets // 2
    far = distances.abs().clamp(min=half)
    # in this order of operations: at a bucket's edge another rounds to its neighbor
    widest = torch.log(torch.tensor((farthest - 1) / half))
    wide = torch.ceil(torch.log(far / half) / widest * (half - 1)) + half
    signed = (wide * distances.sign()).long()
    return torch.where(distances.abs() <= half, distances, signed)
