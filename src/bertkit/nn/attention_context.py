"""Attention context: which tokens queries attend to, and how scores are computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bertkit.batch import Bucket, Packed
from bertkit.nn.rotary_positions import Rotary


class CachedAttention(Protocol):
    """Attention of new tokens to all tokens so far, or of a decoder to its source.

    For a source, there are no new keys and values, so `kv` is None.

    Shapes:
        q: (Rq, H, K).
        kv: (Rq, 2, Hkv, K).
        returns: (Rq, H, K).
    """

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor: ...


class StepCache(Protocol):
    """New tokens of sequences, and the stored keys and values of earlier tokens in each layer."""

    positions: tuple[Tensor, Tensor]
    """Positions of the new tokens (R, Q) and of all keys (R or 1, L)."""

    def bias(self, bias: Tensor) -> None:
        """Add values to all scores. Shapes: (R, H, Q, L)."""

    def layer(self, number: int) -> CachedAttention:
        """Return the self-attention of a layer."""

    def source(self, number: int) -> CachedAttention | None:
        """Return the attention of a layer to a source, or None if there is none."""


class Bias(Protocol):
    """Values that are added to scaled scores and have a separate gradient.

    `q` and `kv` are the inputs of the kernel, `queries` and `keys` one bucket of each. Rows and
    columns of padding are not read.

    Shapes:
        q: (Rq, H, K).
        kv: (Rk, 2, Hkv, K).
        returns: (S or 1, H or 1, Tq, Tk).
    """

    def __call__(self, q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor: ...


class Distances(Protocol):
    """Vectors of the distances between tokens, from which each layer computes its bias.

    Shapes:
        apply_dropout: returns (P, D).
        bias: queries_keys (P, 2, H, K), the queries and keys of these vectors.
    """

    def apply_dropout(self) -> Tensor: ...
    def bias(self, queries_keys: Tensor, scale: float) -> Bias: ...


@dataclass(frozen=True)
class AttentionContext:
    """Tokens that the queries of a layer attend to. Default: all tokens of their own sequence."""

    queries: Packed
    """Layout of the queries; `Padded` in exported graphs."""
    cross: Packed | None = None
    """Layout of the sequences that queries attend to in cross-attention (Vaswani et al. 2017,
    section 3.2.3): one per query sequence, in any order of length.
    """
    causal: bool = False
    """Whether tokens attend only to themselves and earlier tokens."""
    window: int | None = None
    """Number of tokens on each side that a token attends to, besides itself. None means no limit.
    """
    scale: float | None = None
    """Factor of the dot products of queries and keys. Default: 1 / √K."""
    bias: Bias | None = None
    rotary: Rotary | None = None
    distances: Distances | None = None
    cache: CachedAttention | None = None
    """Keys and values of earlier tokens. The keys and values of the new tokens are added to the
    cache, and queries attend to all of it.
    """

    def __post_init__(self) -> None:
        if self.cross is None:
            return
        if self.causal or self.window is not None or self.rotary is not None:
            raise ValueError("causal, window and rotary cannot be combined with cross-attention")
        if self.cross.sequences != self.queries.sequences:
            raise ValueError(
                f"expected {self.queries.sequences} sequences to attend to, "
                f"got {self.cross.sequences}"
            )

    @property
    def keys(self) -> Packed:
        """Layout of keys and values."""
        return self.queries if self.cross is None else self.cross

    @cached_property
    def buckets(self) -> tuple[tuple[Bucket, Bucket], ...]:
        """Buckets of queries of similar length, each with the bucket of its keys."""
        queries, cross = self.queries, self.cross
        keys = queries.buckets if cross is None else cross.split_buckets(queries.bucket_boundaries)
        return tuple(zip(queries.buckets, keys, strict=True))

    @cached_property
    def sequence_buckets(self) -> tuple[tuple[Bucket, Bucket], ...]:
        """A bucket of queries and a bucket of keys for each sequence."""
        boundaries = range(self.queries.sequences + 1)
        queries, keys = (layout.split_buckets(boundaries) for layout in (self.queries, self.keys))
        return tuple(zip(queries, keys, strict=True))

    def split(self, count: int) -> tuple[AttentionContext, AttentionContext]:
        """Return the contexts of the first `count` sequences and of the remaining ones.

        Repeated calls return the same objects.
        """
        if count not in self._splits:
            few, rest = self.queries.split(count)
            first, others = (None, None) if self.cross is None else self.cross.split(count)
            self._splits[count] = (
                replace(self, queries=few, cross=first),
                replace(self, queries=rest, cross=others),
            )
        return self._splits[count]

    @cached_property
    def _splits(self) -> dict[int, tuple[AttentionContext, AttentionContext]]:
        return {}

    def scaling(self, width: int) -> float:
        """Return the scale of scores for heads of this dimension."""
        return float(width**-0.5) if self.scale is None else self.scale

    def reachable(self, rows: slice, length: int) -> slice:
        """Return the range of the `length` keys that at least one of these queries attends to."""
        first, last = 0, length
        if self.window is not None:
            first, last = max(0, rows.start - self.window), min(length, rows.stop + self.window)
        return slice(first, min(last, rows.stop) if self.causal else last)

    def blocked(
        self, length: int, device: torch.device, rows: slice = slice(None)
    ) -> Tensor | None:
        """Return a matrix of the keys that each query does not attend to; None if there are none.

        Args:
            length: Number of queries and of keys.
            device: Device of the matrix.
            rows: Queries to return.

        Shapes:
            returns: (length, length), or the given rows of it.
        """
        if not self.causal and (self.window is None or length <= self.window + 1):
            return None
        return self.out_of_reach(length, device, rows)

    def out_of_reach(self, length: int, device: torch.device, rows: slice = slice(None)) -> Tensor:
        """Return the matrix of `blocked`, also for a length that is symbolic in exported graphs."""
        positions = torch.arange(length, device=device)
        ahead = positions - positions[rows, None]
        blocked = ahead > 0 if self.causal else torch.zeros_like(ahead, dtype=torch.bool)
        return blocked if self.window is None else blocked | (ahead.abs() > self.window)

    def padding(self, keys: Bucket) -> Tensor | None:
        """Return a mask of the padding of keys.

        It is None if there is no padding, or if causal attention hides it anyway.

        Shapes:
            returns: (S, 1, 1, Tk).
        """
        return None if self.causal else keys.padding

    def visible(self, keys: Bucket, device: torch.device) -> Tensor | None:
        """Return a mask of the keys that each query attends to, or None if it attends to all.

        Shapes:
            returns: (S or 1, 1, Tq or 1, Tk).
        """
        padding, blocked = self.padding(keys), self.blocked(keys.length, device)
        columns = None if padding is None else ~padding
        if blocked is None:
            return columns
        if columns is None:
            return ~blocked[None, None]
        # Padding rows attend to all keys, because a softmax needs at least one key.
        rows = ~columns.transpose(-1, -2)
        return columns & (~blocked | rows)
