"""The one layout everything runs on: sequences laid end to end, without padding.

Axis letters, for the whole library: B batch, T tokens of a row, N all tokens of a packed batch,
S sequences, D hidden, H heads, K width of a head, V vocabulary, E embedding width, L labels.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """Where each sequence of a batch lies. Shortest first, so near-equal lengths are neighbors.

    Shapes: starts (S+1,) cumulative lengths; owner (N,) which sequence a token is in;
    positions (N,) its place in that sequence. `lengths` is the same on the host, so that
    choosing a kernel never waits for a device.
    """

    starts: Tensor
    owner: Tensor
    positions: Tensor
    lengths: tuple[int, ...]

    @staticmethod
    def of(lengths: Sequence[int]) -> Packed:
        """The layout of sequences with these lengths, which must not decrease."""
        host = np.asarray(lengths, dtype=np.int64)
        if (np.diff(host) < 0).any() or (host < 1).any():
            raise ValueError("sequences are packed shortest first, and none is empty")
        starts = np.concatenate([[0], np.cumsum(host)])
        owner = np.repeat(np.arange(len(host)), host)
        positions = np.arange(starts[-1]) - starts[:-1][owner]
        return Packed(
            torch.from_numpy(starts),
            torch.from_numpy(owner),
            torch.from_numpy(positions),
            lengths=tuple(host.tolist()),
        )

    @property
    def total(self) -> int:
        """All tokens of the batch, N."""
        return self.owner.shape[0]

    @property
    def first(self) -> Tensor:
        """(S,) where each sequence begins: its [CLS]."""
        return self.starts[:-1]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Neighbors of near-equal length, each of which attention can treat as a rectangle."""
        return tuple(_runs(self))

    def split(self, length: int) -> tuple[Packed, Packed]:
        """The sequences of at most `length` tokens, and the longer ones, each a layout."""
        if length not in self._splits:
            self._splits[length] = _split(self, length)
        return self._splits[length]

    @cached_property
    def _splits(self) -> dict[int, tuple[Packed, Packed]]:
        return {}

    def to(self, device: torch.device | str) -> Packed:
        return Packed(
            self.starts.to(device), self.owner.to(device), self.positions.to(device), self.lengths
        )


RUN_STEP = 16
"""Only lengths that round up to the same multiple may share a run; it is then that long, so that
few shapes come up (oneDNN compiles code for each new one: docs/log.md)."""

RUN_TOKENS = 512
"""A run of equal lengths with fewer tokens than this is joined by longer neighbors: copying a few
tokens into a rectangle costs less than another round of small matrix products."""


@dataclass(frozen=True)
class Run:
    """`sequences` neighbors seen as a rectangle of `length` columns, beginning at token `start`.

    Shapes: rows (tokens,), the place of each token in the flattened rectangle, and hidden
    (sequences, 1, 1, length), True on the columns behind a sequence's end; both are None
    when all lengths are equal and the rectangle is a view.
    """

    start: int
    tokens: int
    sequences: int
    length: int
    rows: Tensor | None
    hidden: Tensor | None


def _split(layout: Packed, length: int) -> tuple[Packed, Packed]:
    short = bisect.bisect_right(layout.lengths, length)
    if short in (0, len(layout.lengths)):
        none = Packed.of(()).to(layout.owner.device)
        return (layout, none) if short else (none, layout)
    device = layout.owner.device
    return (
        Packed.of(layout.lengths[:short]).to(device),
        Packed.of(layout.lengths[short:]).to(device),
    )


def _runs(layout: Packed) -> list[Run]:
    lengths = np.asarray(layout.lengths)
    runs, start = [], 0
    for i, j in itertools.pairwise(_cuts(layout.lengths)):
        part = lengths[i:j]
        tokens, longest = int(part.sum()), int(part.max())
        rows = hidden = None
        if (part != longest).any():
            longest += -longest % RUN_STEP
            seen = torch.arange(longest) < torch.from_numpy(part)[:, None]
            rows = seen.flatten().nonzero().squeeze(1).to(layout.owner.device)
            hidden = (~seen)[:, None, None, :].to(layout.owner.device)
        runs.append(Run(start, tokens, j - i, longest, rows, hidden))
        start += tokens
    return runs


def _cuts(lengths: Sequence[int]) -> list[int]:
    """Where runs begin and end: equal lengths are one, unless they are too few to stand alone."""
    cuts, tokens = [0], 0
    for place in range(1, len(lengths)):
        before, length = lengths[place - 1], lengths[place]
        tokens += before
        near = -(-before // RUN_STEP) == -(-length // RUN_STEP)
        if before != length and not (near and tokens < RUN_TOKENS):
            cuts.append(place)
            tokens = 0
    return [*cuts, len(lengths)] if lengths else []


@dataclass(frozen=True)
class Batch:
    """Token ids and what belongs to them, packed.

    Shapes: ids (N,), types (N,) segment of each token; targets by the name of the head that
    reads them, one for each of its answers. `places` (P,) are the tokens at which a head answers
    that answers at tokens: masked ones, first pieces of words; all when None. `example` (S,)
    numbers the examples that several sequences belong to (the choices of a question).
    """

    ids: Tensor
    types: Tensor
    layout: Packed
    places: Tensor | None = None
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    example: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        return replace(
            self,
            ids=self.ids.to(device),
            types=self.types.to(device),
            layout=self.layout.to(device),
            places=None if self.places is None else self.places.to(device),
            example=None if self.example is None else self.example.to(device),
            targets={name: t.to(device) for name, t in self.targets.items()},
        )
