"""The one layout everything runs on: sequences laid end to end, without padding.

Axis letters, for the whole library: B batch, T tokens of a row, N all tokens of a packed batch,
S sequences, D hidden, H heads, K width of a head, V vocabulary, E embedding width, L labels.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Change = Callable[[Any], Any]
"""Of a tensor, into another or an array."""


@dataclass(frozen=True)
class Packed:
    """Where each sequence of a batch lies. Shortest first, so near-equal lengths are neighbors;
    what cross-attention reads may lie in any order.

    Shapes: cu_seqlens (S+1,) cumulative lengths; sequence_ids (N,) which sequence a token is in;
    positions (N,) its place in that sequence. `lengths` is the same on the host, so that
    choosing a kernel never waits for a device.
    """

    cu_seqlens: Tensor
    sequence_ids: Tensor
    positions: Tensor
    lengths: tuple[int, ...]

    @staticmethod
    def of(lengths: Sequence[int], *, any_order: bool = False) -> Packed:
        """The layout of sequences with these lengths, which must not decrease unless `any_order`
        is allowed: such a layout has keys and values only, and no queries."""
        lengths = tuple(map(int, lengths))
        if min(lengths, default=1) < 1 or not (any_order or lengths == tuple(sorted(lengths))):
            raise ValueError("sequences are packed shortest first, and none is empty")
        cu_seqlens = np.array([0, *itertools.accumulate(lengths)])
        positions = np.arange(cu_seqlens[-1])
        sequence_ids = np.zeros_like(positions)
        if len(lengths) > 1:
            sequence_ids = np.repeat(np.arange(len(lengths)), lengths)
            positions -= cu_seqlens[:-1][sequence_ids]
        return Packed(
            torch.from_numpy(cu_seqlens),
            torch.from_numpy(sequence_ids),
            torch.from_numpy(positions),
            lengths=lengths,
        )

    @property
    def total(self) -> int:
        """All tokens of the batch, N."""
        return self.sequence_ids.shape[0]

    @property
    def sequences(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @cached_property
    def narrow_cu_seqlens(self) -> Tensor:
        """The same in the 32 bits that kernels of GPUs want."""
        return self.cu_seqlens.to(torch.int32)

    @property
    def first(self) -> Tensor:
        """(S,) where each sequence begins: its [CLS]."""
        return self.cu_seqlens[:-1]

    @property
    def counts(self) -> Tensor:
        """(S,) tokens of each sequence."""
        return self.cu_seqlens.diff()

    def sums(self, x: Tensor) -> Tensor:
        """Over the tokens of each sequence, in fp32. Shapes: (N, D) -> (S, D)."""
        if len(self.lengths) == 1 and not torch.is_grad_enabled():
            return x.sum(0, keepdim=True, dtype=torch.float32)
        zeros = torch.zeros(len(self.lengths), x.shape[1], device=x.device)
        return zeros.index_add_(0, self.sequence_ids, x.float())

    def maxima(self, x: Tensor) -> Tensor:
        """The largest of each number over the tokens of a sequence, in fp32. Shapes: the same."""
        lowest = torch.full((len(self.lengths), x.shape[1]), -torch.inf, device=x.device)
        return lowest.scatter_reduce(0, self.sequence_ids[:, None].expand_as(x), x.float(), "amax")

    @cached_property
    def cuts(self) -> list[int]:
        """The first sequence of each bucket, and the number of sequences."""
        return _cuts(self.lengths)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Neighbors of near-equal length, each of which attention can treat as a rectangle."""
        return self.cut(self.cuts)

    def cut(self, cuts: Sequence[int]) -> tuple[Bucket, ...]:
        """The same, cut at these sequences: those of other queries, for instance."""
        return tuple(_buckets(self, cuts))

    def up_to(self, length: int) -> int:
        """How many sequences have at most `length` tokens: the first so many."""
        return bisect.bisect_right(self.lengths, length)

    def split(self, count: int) -> tuple[Packed, Packed]:
        """The first `count` sequences, and the others, each a layout."""
        device = self.sequence_ids.device
        few, rest = self.lengths[:count], self.lengths[count:]
        return (
            Packed.of(few, any_order=True).to(device),
            Packed.of(rest, any_order=True).to(device),
        )

    def reordered(self, order: Tensor) -> tuple[Packed, Tensor]:
        """The layout of these sequences in another order, and the token at each of its places.

        Shapes: order (S',), which may repeat a sequence -> tokens (N',).
        """
        places = order.tolist()
        layout = Packed.of([self.lengths[place] for place in places], any_order=True)
        layout = layout.to(self.sequence_ids.device)
        return layout, self.first[order][layout.sequence_ids] + layout.positions

    def to(self, device: torch.device | str) -> Packed:
        return self.each(partial(_moved, device=device))

    def each(self, change: Change) -> Packed:
        """The same with every tensor changed."""
        return replace(
            self,
            cu_seqlens=change(self.cu_seqlens),
            sequence_ids=change(self.sequence_ids),
            positions=change(self.positions),
        )


@dataclass(frozen=True)
class Padded:
    """Sequences as rows of one length, laid end to end, padding behind each: the layout of exported
    graphs, which no sizes may be known of before they run.

    Shapes: mask (B, T), True at tokens; N is B · T. It has what the encoder and poolings read.
    """

    mask: Tensor

    @property
    def total(self) -> int:
        return self.mask.numel()

    @property
    def sequences(self) -> int:
        return self.mask.shape[0]

    @property
    def longest(self) -> int:
        return self.mask.shape[1]

    @property
    def positions(self) -> Tensor:
        row = torch.arange(self.longest, device=self.mask.device)
        return row.expand_as(self.mask).flatten()

    @property
    def first(self) -> Tensor:
        rows, length = self.mask.shape
        return torch.arange(rows, device=self.mask.device) * length

    @property
    def counts(self) -> Tensor:
        return self.mask.sum(1)

    @property
    def bucket(self) -> Bucket:
        rows, length = self.mask.shape
        return Bucket(0, rows * length, rows, length, None, None, ~self.mask[:, None, None])

    def sums(self, x: Tensor) -> Tensor:
        return (x.view(*self.mask.shape, -1).float() * self.mask[:, :, None]).sum(1)

    def maxima(self, x: Tensor) -> Tensor:
        hidden = ~self.mask[:, :, None]
        return (x.view(*self.mask.shape, -1).float() - hidden.float() * MASKED_SCORE).amax(1)


MASKED_SCORE = 1e9
"""What is taken from numbers that nobody may see. Finite, since exported graphs are computed in
many ways, and some make a nan of an infinity."""

BUCKET_STEP = 16
"""Only lengths that round up to the same multiple may share a bucket; it is then that long, so that
few shapes come up (oneDNN compiles code for each new one: notes/2026-11.md)."""

BUCKET_TOKENS = 512
"""A bucket of equal lengths with fewer tokens than this is joined by longer neighbors: copying a
few tokens into a rectangle costs less than another round of small matrix products."""


@dataclass(frozen=True)
class Bucket:
    """`sequences` neighbors seen as a rectangle of `length` columns, beginning at token `start`.

    Shapes: rows (tokens,), the place of each token in the flattened rectangle; filled (sequences ·
    length,), the token at each place, behind a sequence's end its last; and padding (sequences, 1,
    1, length), True on the columns there. All are None when all lengths are equal and the rectangle
    is a view.
    """

    start: int
    tokens: int
    sequences: int
    length: int
    rows: Tensor | None
    filled: Tensor | None
    padding: Tensor | None


def _buckets(layout: Packed, cuts: Sequence[int]) -> Iterator[Bucket]:
    lengths = np.asarray(layout.lengths)
    start = 0
    for i, j in itertools.pairwise(cuts):
        part = lengths[i:j]
        tokens, longest = int(part.sum()), int(part.max())
        rows = filled = padding = None
        if (part != longest).any():
            longest += -longest % BUCKET_STEP
            real = torch.arange(longest) < torch.from_numpy(part)[:, None]
            rows = real.flatten().nonzero().squeeze(1).to(layout.sequence_ids.device)
            first = np.cumsum(part) - part
            tokens_at = first[:, None] + np.minimum(np.arange(longest), part[:, None] - 1)
            filled = torch.from_numpy(tokens_at.ravel()).to(layout.sequence_ids.device)
            padding = (~real)[:, None, None, :].to(layout.sequence_ids.device)
        yield Bucket(start, tokens, j - i, longest, rows, filled, padding)
        start += tokens


def _cuts(lengths: Sequence[int]) -> list[int]:
    """Where buckets begin and end: equal lengths are one, unless too few to stand alone."""
    cuts, tokens = [0], 0
    for place in range(1, len(lengths)):
        before, length = lengths[place - 1], lengths[place]
        tokens += before
        near = -(-before // BUCKET_STEP) == -(-length // BUCKET_STEP)
        if before != length and not (near and tokens < BUCKET_TOKENS):
            cuts.append(place)
            tokens = 0
    return [*cuts, len(lengths)] if lengths else []


class Tokens(Protocol):
    """A sequence: an encoded text, or a sample. Shapes: ids and types (T,)."""

    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def types(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class Batch:
    """Token ids and what belongs to them, packed.

    Shapes: ids (N,), types (N,) segment of each token; targets by the name of the head that
    reads them, one for each of its answers. `token_indices` (P,) are those at which a head answers
    that answers at tokens: masked ones, first pieces of words; all when None. `example` (S,)
    numbers the examples that several sequences belong to (the choices of a question).

    `source` is what an encoder reads where these tokens are a decoder's; `source_order` (S,) says
    which of its sequences belongs to each, as each side has the shortest first.
    """

    ids: Tensor
    types: Tensor
    layout: Packed
    token_indices: Tensor | None = None
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    example: Tensor | None = None
    source: Batch | None = None
    source_order: Tensor | None = None
    part: int = 0
    """Of its step, where one is cut into parts that several processes share."""
    window: int | None = None
    """To how many tokens on each side a token may attend, where that is fewer than its layer
    allows."""

    @property
    def tokens(self) -> int:
        """All that are read, a source's too."""
        return self.layout.total + (0 if self.source is None else self.source.tokens)

    @staticmethod
    def of(
        sequences: Sequence[Tokens],
        *,
        token_indices: Sequence[NDArray[np.int64]] | None = None,
        targets: Mapping[str, Tensor] | None = None,
        example: Tensor | None = None,
        sources: Sequence[Tokens] | None = None,
    ) -> Batch:
        """Sequences, shortest first, end to end; the token indices of each count within it.

        `sources` are what an encoder reads for each, of any lengths.
        """
        layout = Packed.of([len(sequence.ids) for sequence in sequences])
        chosen = None
        if token_indices is not None:
            starts = layout.first.tolist()
            moved = [indices + start for indices, start in zip(token_indices, starts, strict=True)]
            chosen = torch.from_numpy(np.concatenate(moved))
        source = source_order = None
        if sources is not None:
            order = sorted(range(len(sources)), key=lambda place: len(sources[place].ids))
            source = Batch.of([sources[place] for place in order])
            source_order = torch.from_numpy(np.argsort(order))
        return Batch(
            ids=torch.from_numpy(np.concatenate([sequence.ids for sequence in sequences])),
            types=torch.from_numpy(np.concatenate([sequence.types for sequence in sequences])),
            layout=layout,
            token_indices=chosen,
            targets=targets or {},
            example=example,
            source=source,
            source_order=source_order,
        )

    def to(self, device: torch.device | str) -> Batch:
        """There, without waiting for the copy where it comes from pinned memory."""
        return self.each(partial(_moved, device=device))

    def each(self, change: Change) -> Batch:
        """The same with every tensor changed: moved, pinned, or made an array and back."""

        def where_there(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        return replace(
            self,
            ids=change(self.ids),
            types=change(self.types),
            layout=self.layout.each(change),
            token_indices=where_there(self.token_indices),
            example=where_there(self.example),
            targets={name: change(t) for name, t in self.targets.items()},
            source=None if self.source is None else self.source.each(change),
            source_order=where_there(self.source_order),
        )


def _moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    forth = tensor.device.type == "cpu"  # what comes back from a device must be waited for
    return tensor.to(device, non_blocking=forth)


def by_length(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Which sequences go through a model together, by their places: shortest first, neighbors
    whose lengths add up to at most the budget. A longer sequence stands alone."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for part in cut_by_tokens([lengths[place] for place in order], max_batch_tokens):
        yield order[part]


def cut_by_tokens(lengths: Sequence[int], max_batch_tokens: int) -> list[slice]:
    """Neighbors whose lengths add up to at most the budget; a longer sequence stands alone."""
    cuts, total, start = [], 0, 0
    for place, length in enumerate(lengths):
        if place > start and total + length > max_batch_tokens:
            cuts.append(slice(start, place))
            start, total = place, 0
        total += length
    if start < len(lengths):
        cuts.append(slice(start, len(lengths)))
    return cuts
