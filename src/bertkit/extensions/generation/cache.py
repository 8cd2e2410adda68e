"""Key/value cache for autoregressive decoding.

Each row stores its tokens from position 0, without padding on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Packed

GROWTH_TOKENS = 8
"""Minimum number of tokens by which a cache grows. A large cache grows by an eighth of its size."""

BEAM_STEPS = 8
"""Number of beam search steps for which `BeamCache` adds free slots each time it removes the keys
that no beam attends to."""

FUSED_MAX_ROWS = 256
"""Maximum number of rows of keys for which torch's fused attention is faster than `_attend` in fp32
on CPUs. Beam search over many texts has many short rows (notes/2026-11.md)."""


@dataclass(frozen=True)
class Appended:
    """Layout of a batch that appends `width` new tokens to each row of a cache.

    Shapes:
        lengths: (R,), the number of tokens that each row already has in the cache.
    """

    lengths: Tensor
    width: int
    longest: int
    """Number of tokens in the longest row, including the new tokens."""

    @property
    def total(self) -> int:
        return len(self.lengths) * self.width

    @property
    def row_positions(self) -> Tensor:
        """Position of each new token in its row, of shape (R, C)."""
        return self.lengths[:, None] + torch.arange(self.width, device=self.lengths.device)

    @property
    def positions(self) -> Tensor:
        return self.row_positions.flatten()


class KeyValues:
    """Keys and values of one layer.

    Shapes:
        both: (2, R, Hkv, capacity, K), one contiguous tensor with the keys, then the values.
    """

    def __init__(self, both: Tensor) -> None:
        self.both = both

    @property
    def capacity(self) -> int:
        return self.both.shape[3]

    def pad(self, capacity: int) -> KeyValues:
        """Return a copy with space for `capacity` tokens per row."""
        return KeyValues(F.pad(self.both, (0, 0, 0, capacity - self.capacity)))

    def select_rows(self, rows: Tensor, capacity: int | None = None) -> KeyValues:
        """Return the rows with these indices, in this order, truncated to `capacity` tokens."""
        both = self.both if capacity is None else self.both[:, :, :, :capacity]
        return KeyValues(both.index_select(1, rows))

    def gather(self, indices: Tensor, rows: int) -> KeyValues:
        """Select vectors by their flat indices, and return them as `rows` rows."""
        _, _, heads, _, width = self.both.shape
        both = self.both.view(-1, width).index_select(0, indices)
        return KeyValues(both.view(2, rows, heads, -1, width))

    def concat(self, other: KeyValues) -> KeyValues:
        """Return the rows of this object followed by the rows of another object."""
        capacity = max(self.capacity, other.capacity)
        return KeyValues(torch.cat([self.pad(capacity).both, other.pad(capacity).both], 1))

    def attend(self, q: Tensor, mask: Tensor | None, length: int, scale: float) -> Tensor:
        """Compute attention to the first `length` keys of each row.

        Args:
            q: Queries. R' is a multiple of R; each row of keys serves R' / R adjacent queries.
            mask: Tensor that is added to the attention scores, or None if every query attends to
                all keys.
            length: Number of keys to attend to.
            scale: Factor by which the scores are multiplied.

        Shapes:
            q: (R', H, K); mask: (R, 1 or H, R' / R, length); returns (R', H, K).
        """
        _, rows, groups, _, width = self.both.shape
        shared = q.shape[1] // groups
        # The heads that share keys and the adjacent queries of a row are computed in one matmul.
        q = q.view(rows, -1, groups, shared, width).permute(0, 2, 1, 3, 4).flatten(2, 3)
        if mask is not None and mask.shape[1] > 1:
            mask = mask.unflatten(1, (groups, shared)).transpose(2, 3).flatten(2, 3)
        elif mask is not None and mask.shape[2] > 1:
            mask = mask.repeat_interleave(shared, 2)
        k, v = self.both[..., :length, :]
        if q.dtype == torch.float32 and q.device.type == "cpu" and rows * groups > FUSED_MAX_ROWS:
            mixed = _attend(q, k, v, mask, scale)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        mixed = mixed.reshape(rows, groups, -1, shared, width).permute(0, 2, 1, 3, 4)
        return mixed.reshape(-1, groups * shared, width)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Compute attention with two matrix multiplications instead of torch's fused function.

    Shapes:
        q: (R, G, C, K); k, v: (R, G, T, K); returns (R, G, C, K).
    """
    flat, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    scores = torch.baddbmm(flat.new_empty(()), flat, k.transpose(1, 2), beta=0, alpha=scale)
    if mask is not None:
        scores.view(*q.shape[:3], -1).add_(mask)
    return torch.bmm(torch.softmax(scores, -1), v).view_as(q)


class Cache:
    """Key/value cache of all layers of a model.

    Shapes:
        lengths: (R,), the number of tokens in each row.
    """

    def __init__(self, layers: Sequence[KeyValues], lengths: Tensor, longest: int) -> None:
        self.layers, self.lengths, self.longest = list(layers), lengths, longest
        # Keys and values of the encoder outputs, for the decoder's cross-attention.
        self.sources: Sources | None = None

    @staticmethod
    def of(keys: Sequence[Tensor], values: Sequence[Tensor], layout: Packed) -> Cache:
        """Build a cache from the keys and values that a model computed for packed sequences.

        Args:
            keys: The keys of each layer.
            values: The values of each layer.
            layout: The layout of the packed sequences.

        Shapes:
            keys, values: (N, Hkv, K) per layer.
        """
        capacity = layout.longest + -layout.longest % GROWTH_TOKENS
        ids, positions, tokens = layout.sequence_ids, layout.positions, layout.total

        def layer(*both: Tensor) -> KeyValues:
            _, heads, width = both[0].shape
            out = both[0].new_zeros(2, layout.sequences, heads, capacity, width)
            for into, x in zip(out, both, strict=True):
                into[ids, :, positions] = x[:tokens]
            return KeyValues(out)

        layers = list(map(layer, keys, values))
        return Cache(layers, layout.counts, layout.longest)

    def append(self, width: int) -> CacheStep:
        """Return a step that appends `width` tokens to each row. The cache grows if necessary."""
        longest = self.longest + width
        if longest > self.layers[0].capacity:
            capacity = longest + max(GROWTH_TOKENS, longest // GROWTH_TOKENS)
            self.layers = [layer.pad(capacity) for layer in self.layers]
        layout = Appended(self.lengths, width, longest)
        keys, new = torch.arange(longest, device=self.lengths.device)[None], layout.row_positions
        return CacheStep(
            self, layout, new, CachePositions(new, keys, keys[:, None] <= new[:, :, None])
        )

    def branch(self, beams: int) -> Cache:
        """Return a cache with `beams` adjacent copies of each row.

        Do not use this cache afterwards.
        """
        return BeamCache(self, beams)

    def advance(self, counts: Tensor) -> None:
        """Keep the first `counts` new tokens of each row. The next step overwrites the others."""
        self.lengths = self.lengths + counts
        self.longest = int(self.lengths.max())

    def keep(self, rows: Tensor) -> None:
        """Keep only the rows with these indices, in this order. An index may occur repeatedly."""
        self.layers = [layer.select_rows(rows) for layer in self.layers]
        self.lengths = self.lengths[rows]
        self.longest = int(self.lengths.max()) if len(rows) else 0
        if self.sources is not None:
            self.sources.keep(rows)

    def join(self, other: Cache) -> None:
        """Append the rows of another cache to this cache."""
        pairs = zip(self.layers, other.layers, strict=True)
        self.layers = [layer.concat(added) for layer, added in pairs]
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.longest = max(self.longest, other.longest)
        if self.sources is not None and other.sources is not None:
            self.sources.join(other.sources)


class BeamCache(Cache):
    """Key/value cache for beam search, in which all beams of a request share one row of keys.

    A mask records which keys each beam attends to. When a beam continues another beam, only the
    mask is copied, not the keys. Keys that no beam attends to are removed when the cache grows or a
    request ends.

    Shapes:
        lengths: (R,), the number of tokens of each beam, where R = S · beams for S requests.
        used: (S,), the number of slots that each request uses.
        keys: (S, L), the position of each key in its text.
        seen: (S, beams, L), whether each beam attends to each key.
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
        """Indices of all requests, of shape (S,)."""
        return torch.arange(len(self.used), device=self.used.device)

    def append(self, width: int) -> CacheStep:
        """Return a step that appends one token to each beam.

        Raises:
            ValueError: If `width` is not 1.
        """
        if width != 1:
            raise ValueError(f"width must be 1, because beams grow by one token, got {width}")
        if self.keys.shape[1] + self.beams > self.layers[0].capacity:
            self._compact(self._requests)
        layout = Appended(self.lengths, width, self.longest + width)
        slots = self.used[:, None] + torch.arange(self.beams, device=self.used.device)
        positions = self.lengths.view(-1, self.beams)
        self.keys = F.pad(self.keys, (0, self.beams)).scatter_(1, slots, positions)
        self.seen = F.pad(self.seen, (0, self.beams)).scatter_(2, slots[:, :, None], True)
        return CacheStep(self, layout, slots, CachePositions(positions, self.keys, self.seen))

    def advance(self, counts: Tensor) -> None:
        super().advance(counts)
        self.used = self.used + self.beams

    def keep(self, rows: Tensor) -> None:
        """Keep only the beams with these indices, in this order.

        Args:
            rows: `beams` adjacent indices for each request that continues.
        """
        requests = rows[:: self.beams] // self.beams
        self.lengths, self.seen = self.lengths[rows], self.seen.flatten(0, 1)[rows]
        self.seen = self.seen.unflatten(0, (-1, self.beams))
        if not torch.equal(requests, self._requests):
            self._compact(requests)
        if self.sources is not None:
            self.sources.keep(rows)

    def _compact(self, requests: Tensor) -> None:
        """Keep only some requests, remove the keys that no beam attends to, and add free slots.

        The rows of `seen` must already be selected.

        Shapes:
            requests: (S',), the indices of the requests that continue.
        """
        visible = self.seen.any(1)
        self.used = visible.sum(1)
        slots = visible.argsort(dim=1, descending=True, stable=True)[:, : int(self.used.max())]
        self.keys = self.keys[requests].gather(1, slots)
        self.seen = self.seen.gather(2, slots[:, None].expand(-1, self.beams, -1))
        # The mask hides the free slots until they are written.
        slots = F.pad(slots, (0, BEAM_STEPS * self.beams))
        both = self.layers[0].both
        heads = torch.arange(2 * both.shape[1] * both.shape[2], device=both.device)
        heads = heads.view(2, both.shape[1], -1)[:, requests]
        indices = (heads[..., None] * both.shape[3] + slots[:, None]).flatten()
        self.layers = [layer.gather(indices, len(requests)) for layer in self.layers]


class Sources:
    """Keys and values of encoder outputs, stored once for all rows with the same source text.

    Shapes:
        lengths: (S,), the number of tokens in each source.
        owner: (R,), the index of each row's source. The rows of a source are adjacent, and every
            source has the same number of rows.
    """

    def __init__(
        self, layers: Sequence[KeyValues], lengths: Tensor, owner: Tensor, longest: int
    ) -> None:
        self.layers, self.lengths, self.owner, self.longest = layers, lengths, owner, longest

    @staticmethod
    def of(projections: Sequence[Tensor], layout: Packed, order: Tensor) -> Sources:
        """Build the keys and values of packed sources, with one row for each index in `order`.

        Shapes:
            projections: (N, 2, H, K) per layer, the keys and values of the N source tokens.
        """
        cache = Cache.of([x[:, 0] for x in projections], [x[:, 1] for x in projections], layout)
        cache.keep(order)
        rows = torch.arange(len(order), device=order.device)
        return Sources(cache.layers, cache.lengths, rows, cache.longest)

    def keep(self, rows: Tensor) -> None:
        """Keep only the rows with these indices, in this order."""
        owner = self.owner[rows]
        used, counts = owner.unique_consecutive(return_counts=True)
        if bool((counts != counts[:1]).any()):
            # The sources have different numbers of rows, so each row gets its own copy.
            used = owner
        if len(used) != len(self.lengths) or bool((used.diff() != 1).any()):
            self.lengths = self.lengths[used]
            self.longest = int(self.lengths.max()) if len(used) else 0
            self.layers = [layer.select_rows(used, self.longest) for layer in self.layers]
        repeats = len(owner) // max(len(used), 1)
        self.owner = torch.arange(len(used), device=owner.device).repeat_interleave(repeats)

    def join(self, other: Sources) -> None:
        """Append the rows of other sources. Afterwards, each row has its own copy of its source."""
        cache, added = (Cache(s.layers, s.lengths, s.longest) for s in (self, other))
        cache.keep(self.owner)
        added.keep(other.owner)
        cache.join(added)
        self.layers, self.lengths, self.longest = cache.layers, cache.lengths, cache.longest
        self.owner = torch.arange(len(cache.lengths), device=cache.lengths.device)


@dataclass(frozen=True)
class CachePositions:
    """Positions of the new tokens and of the keys in each row.

    Shapes: R rows, Q new tokens per row, L keys.
    """

    queries: Tensor
    """Position of each new token in its text, of shape (R, Q)."""
    keys: Tensor
    """Position of each key in its text, of shape (R or 1, L)."""
    seen: Tensor
    """Whether each new token attends to each key, of shape (R, Q, L). A token attends to earlier
    keys and to its own key."""


class CacheStep:
    """One decoding step, which gives the layers access to the cache while they compute new tokens.

    Shapes:
        slots: (R, Q), the index at which each new token's key is stored in its row.
    """

    def __init__(
        self, cache: Cache, layout: Appended, slots: Tensor, positions: CachePositions
    ) -> None:
        self.cache, self.layout = cache, layout
        self.positions = positions.queries, positions.keys
        self.length = positions.keys.shape[1]
        both, device = cache.layers[0].both, slots.device
        self.mask = _mask(positions.seen[:, None], both.dtype)
        _, rows, heads, capacity, _ = both.shape
        # Flat indices of the new keys and then of the new values, among all vectors of a layer.
        first = torch.arange(2 * rows * heads, device=device).view(2, rows, heads) * capacity
        self.slots = (first.permute(1, 0, 2)[:, None] + slots[:, :, None, None]).flatten()
        self.source_mask: Tensor | None = None
        if (sources := cache.sources) is not None:
            real = torch.arange(sources.longest, device=device) < sources.lengths[:, None]
            self.source_mask = _mask(real[:, None, None], both.dtype)

    def bias(self, bias: Tensor) -> None:
        """Add a bias to the attention scores in all layers.

        Shapes:
            bias: (R, H, Q, L).
        """
        self.mask = bias if self.mask is None else bias + self.mask

    def layer(self, number: int) -> LayerStep:
        """Return the function that computes the self-attention of a layer."""
        return LayerStep(self, self.cache.layers[number])

    def source(self, number: int) -> SourceStep | None:
        """Return the function that computes the cross-attention of a layer.

        Returns:
            The function, or None if there are no sources.
        """
        sources = self.cache.sources
        if sources is None:
            return None
        return SourceStep(sources.layers[number], self.source_mask, sources.longest)


def _mask(seen: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return a tensor that hides unseen keys when it is added to the scores.

    Returns:
        The tensor, or None if all keys are visible.
    """
    if bool(seen.all()):
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


@dataclass(frozen=True)
class LayerStep:
    """Self-attention of the new tokens in one layer. It also stores their keys and values."""

    step: CacheStep
    layer: KeyValues

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor:
        """Store the new keys and values, then compute attention to all keys of each row.

        Shapes:
            q: (R · C, H, K); kv: (R · C, 2, Hkv, K); returns (R · C, H, K).
        """
        assert kv is not None
        width = kv.shape[-1]
        self.layer.both.view(-1, width).index_copy_(0, self.step.slots, kv.reshape(-1, width))
        return self.layer.attend(q, self.step.mask, self.step.length, scale)


@dataclass(frozen=True)
class SourceStep:
    """Cross-attention of the new tokens to the sources in one layer.

    Shapes:
        mask: (S, 1, 1, longest).
    """

    layer: KeyValues
    mask: Tensor | None
    longest: int

    def __call__(self, q: Tensor, kv: Tensor | None, scale: float) -> Tensor:
        """Compute attention to the source tokens.

        Shapes:
            q: (R · C, H, K); returns (R · C, H, K).
        """
        return self.layer.attend(q, self.mask, self.longest, scale)
