"""What the queries of an attention layer may attend to, and how their scores are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from bertkit.batch import Bucket, Packed
from bertkit.nn.rotary_positions import Rotary


class Recall(Protocol):
    """Attention of new tokens to all of their rows, or to all of a source, of which there are no
    new ones. Shapes: q (Rq, H, K), kv (Rq, 2, Hkv, K) or None -> (Rq, H, K).
    """

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor: ...


class LayerRecall(Protocol):
    """New tokens of sequences, and the stored keys and values of earlier tokens in each layer."""

    positions: tuple[Tensor, Tensor]
    """Positions of the new tokens (R, Q) and of all keys (R or 1, L)."""

    def bias(self, bias: Tensor) -> None:
        """Add values to all scores. Shapes: (R, H, Q, L)."""

    def layer(self, number: int) -> Recall:
        """Return the self-attention of a layer."""

    def source(self, number: int) -> Recall | None:
        """Return the attention of a layer to a source, or None if there is none."""


class Bias(Protocol):
    """Numbers that are added to scaled scores, with a gradient of their own.

    Shapes: q (Rq, H, K) and kv (Rk, 2, Hkv, K) as the kernel has them, and one bucket of each ->
    (S or 1, H or 1, Tq, Tk), of which rows and columns behind a sequence's end are not read.
    """

    def __call__(self, q: Tensor, kv: Tensor, queries: Bucket, keys: Bucket) -> Tensor: ...


class Distances(Protocol):
    """A vector for each distance between tokens, of which every layer makes a bias of its own.

    Shapes: dropped (P, D); what `bias` takes (P, 2, H, K), queries and keys of these vectors.
    """

    def dropped(self) -> Tensor: ...
    def bias(self, queries_keys: Tensor, scale: float) -> Bias: ...


@dataclass(frozen=True)
class AttentionContext:
    """What the queries of a layer may attend to: by default all tokens of their own sequence."""

    queries: Packed
    """Or `Padded`, in graphs that are exported."""
    cross: Packed | None = None
    """Sequences of another layout, one for each of the queries', whose tokens they attend to in
    place of their own (Vaswani et al. 2017, section 3.2.3); in any order."""
    causal: bool = False
    """Whether a token attends to none behind it."""
    window: int | None = None
    """To how many tokens on each side, without itself; None is no limit."""
    scale: float | None = None
    """What products of queries and keys are multiplied by; 1 / √K by default."""
    bias: Bias | None = None
    rotary: Rotary | None = None
    distances: Distances | None = None
    recall: Recall | None = None
    """Where keys and values of tokens that were read before lie: the new tokens' go there, and
    their queries read all."""

    def __post_init__(self) -> None:
        if self.cross is None:
            return
        if self.causal or self.window is not None or self.rotary is not None:
            raise ValueError("causal, window and rotary: cross-attention knows no such order")
        if self.cross.sequences != self.queries.sequences:
            raise ValueError(
                f"{self.queries.sequences} sequences cannot attend to {self.cross.sequences}; "
                "give one for each"
            )

    @property
    def keys(self) -> Packed:
        """The layout of keys and values."""
        return self.queries if self.cross is None else self.cross

    @cached_property
    def buckets(self) -> tuple[tuple[Bucket, Bucket], ...]:
        """Buckets of queries of near-equal length, each with that of its keys."""
        queries, cross = self.queries, self.cross
        keys = queries.buckets if cross is None else cross.split_buckets(queries.bucket_boundaries)
        return tuple(zip(queries.buckets, keys, strict=True))

    @cached_property
    def alone(self) -> tuple[tuple[Bucket, Bucket], ...]:
        """Each sequence of queries, with its keys."""
        boundaries = range(self.queries.sequences + 1)
        queries, keys = (layout.split_buckets(boundaries) for layout in (self.queries, self.keys))
        return tuple(zip(queries, keys, strict=True))

    def split(self, count: int) -> tuple[AttentionContext, AttentionContext]:
        """The first `count` sequences, and the others; the same objects whenever it is asked."""
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
        """The scale of scores, of heads of this width."""
        return float(width**-0.5) if self.scale is None else self.scale

    def reach(self, rows: slice, length: int) -> slice:
        """Of `length` keys those that any of these queries may attend to."""
        first, last = 0, length
        if self.window is not None:
            first, last = max(0, rows.start - self.window), min(length, rows.stop + self.window)
        return slice(first, min(last, rows.stop) if self.causal else last)

    def blocked(
        self, length: int, device: torch.device, rows: slice = slice(None)
    ) -> Tensor | None:
        """(length, length), or some rows of it, True where a key is out of a query's reach; None
        when none is.
        """
        if not self.causal and (self.window is None or length <= self.window + 1):
            return None
        return self.out_of_reach(length, device, rows)

    def out_of_reach(self, length: int, device: torch.device, rows: slice = slice(None)) -> Tensor:
        """The same, of a length that may be unknown."""
        places = torch.arange(length, device=device)
        ahead = places - places[rows, None]
        blocked = ahead > 0 if self.causal else torch.zeros_like(ahead, dtype=torch.bool)
        return blocked if self.window is None else blocked | (ahead.abs() > self.window)

    def padding(self, keys: Bucket) -> Tensor | None:
        """(S, 1, 1, Tk), True on columns that no query may see for they are no tokens; None where
        there are none, or `blocked` hides them already.
        """
        return None if self.causal else keys.padding

    def visible(self, keys: Bucket, device: torch.device) -> Tensor | None:
        """(S or 1, 1, Tq or 1, Tk), True on the columns that a row sees; None if it is all."""
        padding, blocked = self.padding(keys), self.blocked(keys.length, device)
        columns = None if padding is None else ~padding
        if blocked is None:
            return columns
        if columns is None:
            return ~blocked[None, None]
        rows = ~columns.transpose(-1, -2)  # rows of padding see all, for a row must see something
        return columns & (~blocked | rows)
