"""Keys and values of tokens that were read before, so that a text grows without being read again.

Rows begin at their first token and end where each ends: no side is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Packed

GROWTH_TOKENS = 8
"""Caches grow by so many tokens at a time, or by an eighth."""

BEAM_STEPS = 8
"""Steps of beam search for which there is room, behind which keys that nobody sees are left."""

FUSED_MAX_ROWS = 256
"""Rows of keys up to which torch's fused attention is the faster in fp32 on CPUs, where beams of
many texts have a few short rows each (notes/2026-11.md)."""


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
    """Of one layer. Shapes: both (2, R, Hkv, room, K), keys first, one stretch of memory."""

    def __init__(self, both: Tensor) -> None:
        self.both = both

    @property
    def room(self) -> int:
        return self.both.shape[3]

    def padded(self, room: int) -> KeyValues:
        """With so much room."""
        return KeyValues(F.pad(self.both, (0, 0, 0, room - self.room)))

    def kept(self, rows: Tensor, room: int | None = None) -> KeyValues:
        """These rows alone, in this order, with so much of their room."""
        both = self.both if room is None else self.both[:, :, :, :room]
        return KeyValues(both.index_select(1, rows))

    def taken(self, lines: Tensor, rows: int) -> KeyValues:
        """These keys and values, by their places in memory, as so many rows."""
        _, _, heads, _, width = self.both.shape
        both = self.both.view(-1, width).index_select(0, lines)
        return KeyValues(both.view(2, rows, heads, -1, width))

    def joined(self, other: KeyValues) -> KeyValues:
        """The rows of another behind these."""
        room = max(self.room, other.room)
        return KeyValues(torch.cat([self.padded(room).both, other.padded(room).both], 1))

    def attend(self, q: Tensor, mask: Tensor | None, length: int, scale: float) -> Tensor:
        """Each query's mixture of the first `length` values.

        Shapes: q (R', H, K), R' a multiple of R; mask (R, 1 or H, R' / R, length), added to
        scores; None where a query sees all -> (R', H, K).
        """
        _, rows, groups, _, width = self.both.shape
        shared = q.shape[1] // groups
        # heads that share keys, and neighbors that read the same row, are queries of one product
        q = q.view(rows, -1, groups, shared, width).permute(0, 2, 1, 3, 4).flatten(2, 3)
        if mask is not None and mask.shape[1] > 1:
            mask = mask.unflatten(1, (groups, shared)).transpose(2, 3).flatten(2, 3)
        elif mask is not None and mask.shape[2] > 1:
            mask = mask.repeat_interleave(shared, 2)
        k, v = self.both[..., :length, :]
        if q.dtype == torch.float32 and q.device.type == "cpu" and rows * groups > FUSED_MAX_ROWS:
            mixed = _products(q, k, v, mask, scale)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        mixed = mixed.reshape(rows, groups, -1, shared, width).permute(0, 2, 1, 3, 4)
        return mixed.reshape(-1, groups * shared, width)


def _products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The same in two products. Shapes: q (R, G, C, K), k and v (R, G, T, K) -> as q."""
    flat, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.baddbmm(flat.new_empty(()), flat, k.transpose(1, 2), beta=0, alpha=scale)
    if mask is not None:
        scores.view(*q.shape[:3], -1).add_(mask)
    return torch.bmm(torch.softmax(scores, -1), v).view_as(q)


class Cache:
    """Of all layers. Shapes: lengths (R,), the tokens of each row."""

    def __init__(self, layers: Sequence[KeyValues], lengths: Tensor, longest: int) -> None:
        self.layers, self.lengths, self.longest = list(layers), lengths, longest
        self.sources: Sources | None = None  # what the rows of a decoder attend to

    @staticmethod
    def of(keys: Sequence[Tensor], values: Sequence[Tensor], layout: Packed) -> Cache:
        """Of packed sequences, a layer each. Shapes: (N, Hkv, K) both."""
        room = layout.longest + -layout.longest % GROWTH_TOKENS
        ids, places, tokens = layout.sequence_ids, layout.positions, layout.total

        def layer(*both: Tensor) -> KeyValues:
            _, heads, width = both[0].shape
            out = both[0].new_zeros(2, layout.sequences, heads, room, width)
            for into, x in zip(out, both, strict=True):
                into[ids, :, places] = x[:tokens]
            return KeyValues(out)

        layers = list(map(layer, keys, values))
        return Cache(layers, layout.counts, layout.longest)

    def append(self, width: int) -> CacheStep:
        """Room for so many more tokens of each row: a step, in which layers write and read."""
        longest = self.longest + width
        if longest > self.layers[0].room:
            room = longest + max(GROWTH_TOKENS, longest // GROWTH_TOKENS)
            self.layers = [one.padded(room) for one in self.layers]
        layout = Appended(self.lengths, width, longest)
        keys, places = torch.arange(longest, device=self.lengths.device)[None], layout.places
        return CacheStep(
            self, layout, places, CachePositions(places, keys, keys[:, None] <= places[:, :, None])
        )

    def branch(self, beams: int) -> Cache:
        """Each row so many times, neighbors: the beams of a search. This one is used no more."""
        return BeamCache(self, beams)

    def advance(self, counts: Tensor) -> None:
        """So many of each row's new tokens stay; the next are written over the others."""
        self.lengths = self.lengths + counts
        self.longest = int(self.lengths.max())

    def keep(self, rows: Tensor) -> None:
        """These rows alone, in this order; one may come twice."""
        self.layers = [one.kept(rows) for one in self.layers]
        self.lengths = self.lengths[rows]
        self.longest = int(self.lengths.max()) if len(rows) else 0
        if self.sources is not None:
            self.sources.keep(rows)

    def join(self, other: Cache) -> None:
        """The rows of another behind these."""
        pairs = zip(self.layers, other.layers, strict=True)
        self.layers = [one.joined(more) for one, more in pairs]
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.longest = max(self.longest, other.longest)
        if self.sources is not None and other.sources is not None:
            self.sources.join(other.sources)


class BeamCache(Cache):
    """Of beam search: neighbors share the keys of their request, each beam's own among them.

    A beam that goes on from another takes over which keys it sees, and no key is copied. Keys that
    nobody sees any more are left behind when room is made, or some request ends.

    Shapes: S requests, R = S · beams; lengths (R,), the tokens of each beam; used (S,), places that
    are taken; keys (S, L), where each stands in its text; seen (S, beams, L).
    """

    def __init__(self, cache: Cache, beams: int) -> None:
        super().__init__(cache.layers, cache.lengths.repeat_interleave(beams), cache.longest)
        self.beams, self.used = beams, cache.lengths
        self.keys = torch.arange(self.longest, device=self.used.device).repeat(len(self.used), 1)
        self.seen = (self.keys < self.used[:, None])[:, None].repeat(1, beams, 1)
        self.sources = cache.sources
        if self.sources is not None:
            self.sources.keep(self._requests.repeat_interleave(beams))

    @property
    def _requests(self) -> Tensor:
        """(S,), each in its place."""
        return torch.arange(len(self.used), device=self.used.device)

    def append(self, width: int) -> CacheStep:
        """As of any cache, for one token each."""
        if width != 1:
            raise ValueError(f"beams grow by one token at a time, not by {width}")
        if self.keys.shape[1] + self.beams > self.layers[0].room:
            self._tidy(self._requests)
        layout = Appended(self.lengths, width, self.longest + width)
        slots = self.used[:, None] + torch.arange(self.beams, device=self.used.device)
        places = self.lengths.view(-1, self.beams)
        self.keys = F.pad(self.keys, (0, self.beams)).scatter_(1, slots, places)
        self.seen = F.pad(self.seen, (0, self.beams)).scatter_(2, slots[:, :, None], True)
        return CacheStep(self, layout, slots, CachePositions(places, self.keys, self.seen))

    def advance(self, counts: Tensor) -> None:
        super().advance(counts)
        self.used = self.used + self.beams

    def keep(self, rows: Tensor) -> None:
        """These beams alone, in this order: as many of each request that stays."""
        requests = rows[:: self.beams] // self.beams
        self.lengths, self.seen = self.lengths[rows], self.seen.flatten(0, 1)[rows]
        self.seen = self.seen.unflatten(0, (-1, self.beams))
        if not torch.equal(requests, self._requests):
            self._tidy(requests)
        if self.sources is not None:
            self.sources.keep(rows)

    def _tidy(self, requests: Tensor) -> None:
        """Of these requests the keys that some beam sees, and room for more.

        Shapes: requests (S',), the place of each that stays; `seen` is theirs already.
        """
        alive = self.seen.any(1)
        self.used = alive.sum(1)
        slots = alive.argsort(dim=1, descending=True, stable=True)[:, : int(self.used.max())]
        self.keys = self.keys[requests].gather(1, slots)
        self.seen = self.seen.gather(2, slots[:, None].expand(-1, self.beams, -1))
        slots = F.pad(slots, (0, BEAM_STEPS * self.beams))  # unseen until it is written
        both = self.layers[0].both
        lines = torch.arange(2 * both.shape[1] * both.shape[2], device=both.device)
        lines = lines.view(2, both.shape[1], -1)[:, requests]
        lines = (lines[..., None] * both.shape[3] + slots[:, None]).flatten()
        self.layers = [one.taken(lines, len(requests)) for one in self.layers]


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
            self.lengths = self.lengths[used]
            self.longest = int(self.lengths.max()) if len(used) else 0
            self.layers = [one.kept(used, self.longest) for one in self.layers]
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


@dataclass(frozen=True)
class CachePositions:
    """Of new tokens, and of all keys that a row of a cache has then. Shapes: R rows, Q new tokens
    of each, L keys.
    """

    queries: Tensor
    """(R, Q), where each new token stands in its text."""
    keys: Tensor
    """(R or 1, L), where each key stands in its."""
    seen: Tensor
    """(R, Q, L), whether a key is before the token, or is its own."""


class CacheStep:
    """New tokens of each row of a cache, on their way through the layers.

    Shapes: slots (R, Q), the place among a row's keys that each new token takes.
    """

    def __init__(
        self, cache: Cache, layout: Appended, slots: Tensor, places: CachePositions
    ) -> None:
        self.cache, self.layout = cache, layout
        self.positions = places.queries, places.keys
        self.length = places.keys.shape[1]
        both, device = cache.layers[0].both, slots.device
        self.mask = _mask(places.seen[:, None], both.dtype)
        _, rows, heads, room, _ = both.shape
        # where the new keys, then values, of each token lie among those of a layer
        first = torch.arange(2 * rows * heads, device=device).view(2, rows, heads) * room
        self.slots = (first.permute(1, 0, 2)[:, None] + slots[:, :, None, None]).flatten()
        self.source_mask: Tensor | None = None
        if (sources := cache.sources) is not None:
            real = torch.arange(sources.longest, device=device) < sources.lengths[:, None]
            self.source_mask = _mask(real[:, None, None], both.dtype)

    def bias(self, bias: Tensor) -> None:
        """Add this to all scores. Shapes: (R, H, Q, L)."""
        self.mask = bias if self.mask is None else bias + self.mask

    def layer(self, number: int) -> LayerStep:
        """What the attention of this layer reads."""
        return LayerStep(self, self.cache.layers[number])

    def source(self, number: int) -> SourceStep | None:
        """What its attention to a source reads, where there is one."""
        sources = self.cache.sources
        if sources is None:
            return None
        return SourceStep(sources.layers[number], self.source_mask, sources.longest)


def _mask(seen: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores so that a key that is not seen has no share; None where all are."""
    if bool(seen.all()):
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


@dataclass(frozen=True)
class LayerStep:
    """One layer's keys and values: those of before, and those of the new tokens."""

    step: CacheStep
    layer: KeyValues

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor:
        """Shapes: q (R · C, H, K), kv (R · C, 2, Hkv, K) -> (R · C, H, K)."""
        assert kv is not None
        width = kv.shape[-1]
        self.layer.both.view(-1, width).index_copy_(0, self.step.slots, kv.reshape(-1, width))
        return self.layer.attend(q, self.step.mask, self.step.length, scale)


@dataclass(frozen=True)
class SourceStep:
    """One layer's keys and values of the sources, to which nothing is added.

    Shapes: mask (S, 1, 1, longest).
    """

    layer: KeyValues
    mask: Tensor | None
    longest: int

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor:
        """Shapes: q (R · C, H, K) -> the same."""
        return self.layer.attend(q, self.mask, self.longest, scale)
