"""Keys and values of tokens that were read before, so that a text grows without being read again.

Rows begin at their first token and end where each ends: no side is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Packed

ROOM = 8
"""Caches grow by so many tokens at a time, or by an eighth: beam search copies what it keeps, room
included."""


@dataclass(frozen=True)
class Appended:
    """A layout of `width` tokens for each row, right behind those that a cache holds of it.

    Shapes: lengths (R,), the tokens of each row in the cache.
    """

    lengths: Tensor
    width: int
    longest: int
    """Places of the longest row, with the new ones."""

    @property
    def total(self) -> int:
        return len(self.lengths) * self.width

    @property
    def places(self) -> Tensor:
        """(R, C), each token's place in its row."""
        return self.lengths[:, None] + torch.arange(self.width, device=self.lengths.device)

    @property
    def positions(self) -> Tensor:
        return self.places.flatten()


class KeyValues:
    """Of one layer. Shapes: keys and values (R, Hkv, room, K)."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    @property
    def room(self) -> int:
        return self.keys.shape[2]

    def mapped(self, change: Callable[[Tensor], Tensor]) -> KeyValues:
        return KeyValues(change(self.keys), change(self.values))

    def attend(
        self,
        q: Tensor,
        seen: Tensor | None,
        length: int,
        scale: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Each query's mixture of the first `length` values.

        Shapes: q (R', H, K), R' a multiple of R; seen (R, 1, R' / R, length), True where a query
        sees a key; None where it sees all; bias (R, H, R' / R, length), added to scores
        -> (R', H, K).
        """
        rows, groups, _, width = self.keys.shape
        shared = q.shape[1] // groups
        # heads that share keys, and neighbors that read the same row, are queries of one product
        q = q.view(rows, -1, groups, shared, width).permute(0, 2, 1, 3, 4)
        apart = q.reshape(rows * groups, -1, width)
        k, v = (x[:, :, :length].flatten(0, 1) for x in (self.keys, self.values))
        scores = torch.baddbmm(apart.new_empty(()), apart, k.transpose(1, 2), beta=0, alpha=scale)
        each = scores.view(rows, groups, -1, shared, length)
        if bias is not None:
            each += bias.unflatten(1, (groups, shared)).transpose(2, 3)
        if seen is not None:
            each.masked_fill_(~seen.unsqueeze(3), -torch.inf)
        mixed = torch.bmm(torch.softmax(scores, -1), v)
        return (
            mixed.view(rows, groups, -1, shared, width)
            .permute(0, 2, 1, 3, 4)
            .reshape(-1, groups * shared, width)
        )


class Cache:
    """Of all layers. Shapes: lengths (R,), the tokens of each row."""

    def __init__(self, layers: Sequence[KeyValues], lengths: Tensor, longest: int) -> None:
        self.layers, self.lengths, self.longest = list(layers), lengths, longest
        self.sources: Sources | None = None  # what the rows of a decoder attend to

    @staticmethod
    def of(keys: Sequence[Tensor], values: Sequence[Tensor], layout: Packed) -> Cache:
        """Of packed sequences, a layer each. Shapes: (N, Hkv, K) both."""
        room = layout.longest + -layout.longest % ROOM
        ids, places, tokens = layout.sequence_ids, layout.positions, layout.total

        def rows(x: Tensor) -> Tensor:
            out = x.new_zeros(layout.sequences, x.shape[1], room, x.shape[2])
            out[ids, :, places] = x[:tokens]
            return out

        layers = [KeyValues(rows(k), rows(v)) for k, v in zip(keys, values, strict=True)]
        return Cache(layers, layout.counts, layout.longest)

    def append(self, width: int) -> Step:
        """Room for so many more tokens of each row: a step, in which layers write and read."""
        longest = self.longest + width
        if self.layers and longest > self.layers[0].room:
            roomy = longest + longest // ROOM
            more = roomy + -roomy % ROOM - self.layers[0].room
            self.layers = [one.mapped(lambda x: F.pad(x, (0, 0, 0, more))) for one in self.layers]
        return Step(self, Appended(self.lengths, width, longest))

    def advance(self, counts: Tensor) -> None:
        """So many of each row's new tokens stay; the next are written over the others."""
        self.lengths = self.lengths + counts
        self.longest = int(self.lengths.max())

    def keep(self, rows: Tensor) -> None:
        """These rows alone, in this order; one may come twice."""
        self.layers = [one.mapped(lambda x: x.index_select(0, rows)) for one in self.layers]
        self.lengths = self.lengths[rows]
        self.longest = int(self.lengths.max()) if len(rows) else 0
        if self.sources is not None:
            self.sources.keep(rows)

    def join(self, other: Cache) -> None:
        """The rows of another behind these."""
        room = max(self.layers[0].room, other.layers[0].room)

        def both(one: Tensor, more: Tensor) -> Tensor:
            return torch.cat([F.pad(x, (0, 0, 0, room - x.shape[2])) for x in (one, more)])

        self.layers = [
            KeyValues(both(one.keys, more.keys), both(one.values, more.values))
            for one, more in zip(self.layers, other.layers, strict=True)
        ]
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.longest = max(self.longest, other.longest)
        if self.sources is not None and other.sources is not None:
            self.sources.join(other.sources)


class Sources:
    """Keys and values of what encoders read, once for each source, however many rows attend to it.

    Shapes: lengths (S,), the tokens of each source; owner (R,), which of them belongs to a row:
    neighbors that share one are as many for every source.
    """

    def __init__(
        self, layers: Sequence[KeyValues], lengths: Tensor, owner: Tensor, longest: int
    ) -> None:
        self.layers, self.lengths, self.owner, self.longest = layers, lengths, owner, longest

    @staticmethod
    def of(projections: Sequence[Tensor], layout: Packed, order: Tensor) -> Sources:
        """Of packed sources, one row for each of `order`. Shapes: (N, 2, H, K) a layer."""
        cache = Cache.of([x[:, 0] for x in projections], [x[:, 1] for x in projections], layout)
        cache.keep(order)
        rows = torch.arange(len(order), device=order.device)
        return Sources(cache.layers, cache.lengths, rows, cache.longest)

    def keep(self, rows: Tensor) -> None:
        """These rows alone, in this order."""
        owner = self.owner[rows]
        used, counts = owner.unique_consecutive(return_counts=True)
        if bool((counts != counts[:1]).any()):
            used = owner  # shared unevenly: a copy for each
        if len(used) != len(self.lengths) or bool((used.diff() != 1).any()):
            self.layers = [one.mapped(lambda x: x.index_select(0, used)) for one in self.layers]
            self.lengths = self.lengths[used]
        share = len(owner) // max(len(used), 1)
        self.owner = torch.arange(len(used), device=owner.device).repeat_interleave(share)

    def join(self, other: Sources) -> None:
        """The rows of another behind these; each row then has a source of its own."""
        mine, theirs = (Cache(one.layers, one.lengths, one.longest) for one in (self, other))
        mine.keep(self.owner)
        theirs.keep(other.owner)
        mine.join(theirs)
        self.layers, self.lengths, self.longest = mine.layers, mine.lengths, mine.longest
        self.owner = torch.arange(len(mine.lengths), device=mine.lengths.device)


class Step:
    """New tokens of each row of a cache, on their way through the layers."""

    def __init__(self, cache: Cache, layout: Appended) -> None:
        self.cache, self.layout, sources = cache, layout, cache.sources
        self.places = layout.places
        self.rows = torch.arange(len(layout.lengths), device=layout.lengths.device)[:, None]
        ends = self.places[:, None, :, None]
        keys = torch.arange(layout.longest, device=ends.device)
        self.bias: Tensor | None = None  # of scores, by the distance (T5)
        self.seen: Tensor | None = keys <= ends
        if layout.width == 1 and bool(self.seen.all()):
            self.seen = None
        if sources is not None:
            places = torch.arange(sources.longest, device=ends.device)
            self.real = (places < sources.lengths[:, None])[:, None, None]

    def layer(self, number: int) -> LayerStep:
        """What the attention of this layer reads."""
        return LayerStep(self, self.cache.layers[number])

    def source(self, number: int) -> SourceStep | None:
        """What its attention to a source reads, where there is one."""
        sources = self.cache.sources
        return None if sources is None else SourceStep(self, sources.layers[number])


@dataclass(frozen=True)
class LayerStep:
    """One layer's keys and values: those of before, and those of the new tokens."""

    step: Step
    layer: KeyValues

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor:
        """Shapes: q (R · C, H, K), kv (R · C, 2, Hkv, K) -> (R · C, H, K)."""
        assert kv is not None
        step, layer = self.step, self.layer
        new = kv.unflatten(0, (-1, step.layout.width))
        layer.keys[step.rows, :, step.places] = new[:, :, 0]
        layer.values[step.rows, :, step.places] = new[:, :, 1]
        return layer.attend(q, step.seen, step.layout.longest, scale, step.bias)


@dataclass(frozen=True)
class SourceStep:
    """One layer's keys and values of the sources, to which nothing is added."""

    step: Step
    layer: KeyValues

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor:
        """Shapes: q (R · C, H, K) -> the same."""
        real = self.step.real
        return self.layer.attend(q, real, real.shape[-1], scale)
