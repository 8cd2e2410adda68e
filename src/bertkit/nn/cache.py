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

ROOM = 64
"""Caches grow by so many tokens at a time."""


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

    def attend(self, q: Tensor, seen: Tensor | None, length: int, scale: float) -> Tensor:
        """Each query's mixture of the first `length` values.

        Shapes: q (R', H, K), R' a multiple of R; seen (R, 1, R' / R, length), True where a query
        sees a key; None where it sees all -> (R', H, K).
        """
        rows, groups, _, width = self.keys.shape
        shared = q.shape[1] // groups
        # heads that share keys, and neighbors that read the same row, are queries of one product
        q = q.view(rows, -1, groups, shared, width).permute(0, 2, 1, 3, 4)
        apart = q.reshape(rows * groups, -1, width)
        k, v = (x[:, :, :length].flatten(0, 1) for x in (self.keys, self.values))
        scores = torch.baddbmm(apart.new_empty(()), apart, k.transpose(1, 2), beta=0, alpha=scale)
        if seen is not None:
            each = scores.view(rows, groups, -1, shared, length)
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
            more = longest + -longest % ROOM - self.layers[0].room
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


class Step:
    """New tokens of each row of a cache, on their way through the layers."""

    def __init__(self, cache: Cache, layout: Appended) -> None:
        self.cache, self.layout = cache, layout
        self.places = layout.places
        self.rows = torch.arange(len(layout.lengths), device=layout.lengths.device)[:, None]
        ends = self.places[:, None, :, None]
        keys = torch.arange(layout.longest, device=ends.device)
        self.seen: Tensor | None = keys <= ends
        if layout.width == 1 and bool(self.seen.all()):
            self.seen = None

    def layer(self, number: int) -> LayerStep:
        """What the attention of this layer reads."""
        return LayerStep(self, self.cache.layers[number])


@dataclass(frozen=True)
class LayerStep:
    """One layer's keys and values: those of before, and those of the new tokens."""

    step: Step
    layer: KeyValues

    def __call__(self, q: Tensor, kv: Tensor, scale: float) -> Tensor:
        """Shapes: q (R · C, H, K), kv (R · C, 2, Hkv, K) -> (R · C, H, K)."""
        step, layer = self.step, self.layer
        new = kv.unflatten(0, (-1, step.layout.width))
        layer.keys[step.rows, :, step.places] = new[:, :, 0]
        layer.values[step.rows, :, step.places] = new[:, :, 1]
        return layer.attend(q, step.seen, step.layout.longest, scale)
