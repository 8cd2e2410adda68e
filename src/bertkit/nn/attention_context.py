"""Attention context, which defines what queries attend to, and how scores are computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bertkit.batch import Bucket, Packed
from bertkit.nn.rotary_positions import Rotary


class CachedAttention(Protocol):
    """Attention with a key/value cache.

    In self-attention, new tokens attend to all tokens so far. In cross-attention, they attend to
    the encoder's states. There are then no new keys and values, so `kv` is None.

    Shapes:
        q: (Rq, H, K).
        kv: (Rq, 2, Hkv, K).
        returns: (Rq, H, K).
    """

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor: ...


class StepCache(Protocol):
    """Key/value cache for one generation step: it stores the keys and values of earlier tokens."""

    positions: tuple[Tensor, Tensor]
    """Positions of the new tokens, of shape (R, Q), and of all keys, of shape (R or 1, L)."""

    def bias(self, bias: Tensor) -> None:
        """Set a bias that is added to the scores of all layers. Shapes: (R, H, Q, L)."""

    def layer(self, number: int) -> CachedAttention:
        """Return the self-attention of a layer."""

    def source(self, number: int) -> CachedAttention | None:
        """Return the cross-attention of a layer, or None if there is no source."""


class Bias(Protocol):
    """Function that computes the bias to add to scaled scores. The bias can have a gradient.

    `q` and `kv` are the inputs of the kernel. `queries` and `keys` are the buckets for which the
    bias is computed. The bias of padding rows and columns may have any value.

    Shapes:
        q: (Rq, H, K).
        kv: (Rk, 2, Hkv, K).
        returns: (S or 1, H or 1, Tq, Tk).
    """

    def __call__(self, q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor: ...


class Distances(Protocol):
    """Vectors for the distances between tokens. Each layer computes its bias from them.

    Shapes:
        apply_dropout: returns (P, D), the vectors after dropout.
        bias: queries_keys (P, 2, H, K), the queries and keys that a layer computes from them.
    """

    def apply_dropout(self) -> Tensor: ...
    def bias(self, queries_keys: Tensor, scale: float) -> Bias: ...


@dataclass(frozen=True)
class AttentionContext:
    """Definition of the tokens that the queries of a layer attend to.

    By default, each query attends to all tokens of its sequence.
    """

    queries: Packed
    """Layout of the queries. In exported graphs, it is a `Padded` layout."""
    cross: Packed | None = None
    """Layout of the sequences that queries attend to in cross-attention (Vaswani et al. 2017,
    section 3.2.3). There is one for each query sequence. They need not be sorted by length.
    """
    causal: bool = False
    """Whether tokens attend only to themselves and to earlier tokens."""
    window: int | None = None
    """Number of tokens on each side that a token attends to, in addition to itself. None means no
    limit.
    """
    scale: float | None = None
    """Factor that multiplies the dot products of queries and keys. Default: 1 / √K."""
    bias: Bias | None = None
    rotary: Rotary | None = None
    distances: Distances | None = None
    cache: CachedAttention | None = None
    """Key/value cache of earlier tokens. The keys and values of the new tokens are added to the
    cache, and the queries attend to all tokens in it.
    """

    def __post_init__(self) -> None:
        if self.cross is None:
            return
        if self.causal or self.window is not None or self.rotary is not None:
            raise ValueError("causal, window, and rotary cannot be combined with cross-attention")
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
        """Pairs of a bucket of queries of similar length and the bucket of their keys."""
        queries, cross = self.queries, self.cross
        keys = queries.buckets if cross is None else cross.split_buckets(queries.bucket_boundaries)
        return tuple(zip(queries.buckets, keys, strict=True))

    @cached_property
    def sequence_buckets(self) -> tuple[tuple[Bucket, Bucket], ...]:
        """Pairs of a bucket of queries and a bucket of keys, one pair for each sequence."""
        boundaries = range(self.queries.sequences + 1)
        queries, keys = (layout.split_buckets(boundaries) for layout in (self.queries, self.keys))
        return tuple(zip(queries, keys, strict=True))

    def split(self, count: int) -> tuple[AttentionContext, AttentionContext]:
        """Return the context of the first `count` sequences, and of the remaining sequences.

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
        """Return the factor that multiplies the dot products, for heads of this dimension."""
        return float(width**-0.5) if self.scale is None else self.scale

    def reachable(self, rows: slice, length: int) -> slice:
        """Return the range of the `length` keys that at least one query in `rows` attends to."""
        first, last = 0, length
        if self.window is not None:
            first, last = max(0, rows.start - self.window), min(length, rows.stop + self.window)
        return slice(first, min(last, rows.stop) if self.causal else last)

    def blocked(
        self, length: int, device: torch.device, rows: slice = slice(None)
    ) -> Tensor | None:
        """Return a mask of the keys that each query does not attend to.

        It is None if each query attends to all keys.

        Args:
            length: Number of queries, which is also the number of keys.
            device: Device of the mask.
            rows: Queries for which to return the mask.

        Shapes:
            returns: (length, length), or the rows of this matrix that `rows` selects.
        """
        if not self.causal and (self.window is None or length <= self.window + 1):
            return None
        return self.out_of_reach(length, device, rows)

    def out_of_reach(self, length: int, device: torch.device, rows: slice = slice(None)) -> Tensor:
        """Return the mask of `blocked`, but never None, so that `length` can be a symbolic number.

        The length is symbolic while a graph is exported.
        """
        positions = torch.arange(length, device=device)
        ahead = positions - positions[rows, None]
        blocked = ahead > 0 if self.causal else torch.zeros_like(ahead, dtype=torch.bool)
        return blocked if self.window is None else blocked | (ahead.abs() > self.window)

    def padding(self, keys: Bucket) -> Tensor | None:
        """Return a mask of the keys that are padding.

        It is None if there is no padding, or if causal attention excludes the padding anyway.

        Shapes:
            returns: (S, 1, 1, Tk).
        """
        return None if self.causal else keys.padding

    def visible(self, keys: Bucket, device: torch.device) -> Tensor | None:
        """Return a mask of the keys that each query attends to, or None if all attend to all keys.

        Shapes:
            returns: (S or 1, 1, Tq or 1, Tk).
        """
        padding, blocked = self.padding(keys), self.blocked(keys.length, device)
        columns = None if padding is None else ~padding
        if blocked is None:
            return columns
        if columns is None:
            return ~blocked[None, None]
        # Queries that are padding attend to all keys, because a softmax needs at least one key.
        rows = ~columns.transpose(-1, -2)
        return columns & (~blocked | rows)
