"""Packed batches: sequences concatenated along the token axis, without padding.

Axis letters in all shapes of bertkit: B batch, T tokens of a sequence, N tokens of a packed batch,
S sequences, D hidden size, H heads, K head dimension, V vocabulary size, E embedding size,
L labels, P token indices.
"""

from __future__ import annotations

import bisect
import itertools
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """Layout of a packed batch: the lengths and boundaries of its sequences.

    Sequences are sorted by length, shortest first, so that sequences of similar length are
    adjacent. Only the keys and values of cross-attention may be in a different order.

    Shapes:
        cu_seqlens: (S+1,), cumulative sequence lengths, as in FlashAttention.
        sequence_ids: (N,), index of the sequence that contains each token.
        positions: (N,), position of each token in its sequence.
    """

    cu_seqlens: Tensor
    sequence_ids: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    """Sequence lengths on the host, so that kernel selection does not synchronize with a GPU."""

    @staticmethod
    def of(lengths: Sequence[int], *, any_order: bool = False) -> Packed:
        """Create the layout of a batch from the lengths of its sequences.

        Args:
            lengths: Number of tokens of each sequence, in ascending order unless `any_order` is
                true.
            any_order: Whether to accept lengths in any order. Only the keys and values of
                cross-attention need this.

        Returns:
            The layout, with tensors on the CPU.

        Raises:
            ValueError: If a length is less than 1, or the lengths are not ascending and
                `any_order` is false.
        """
        lengths = tuple(map(int, lengths))
        if min(lengths, default=1) < 1 or not (any_order or lengths == tuple(sorted(lengths))):
            raise ValueError(f"lengths must be positive and ascending, got {reprlib.repr(lengths)}")
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
        """Number of tokens of the batch, N."""
        return self.sequence_ids.shape[0]

    @property
    def sequences(self) -> int:
        """Number of sequences, S."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence."""
        return max(self.lengths)

    @cached_property
    def cu_seqlens_int32(self) -> Tensor:
        """`cu_seqlens` in int32, the dtype that GPU kernels require. Shapes: (S+1,)."""
        return self.cu_seqlens.to(torch.int32)

    @property
    def first(self) -> Tensor:
        """Index of the first token ([CLS]) of each sequence. Shapes: (S,)."""
        return self.cu_seqlens[:-1]

    @property
    def counts(self) -> Tensor:
        """Number of tokens of each sequence. Shapes: (S,)."""
        return self.cu_seqlens.diff()

    def segment_sum(self, x: Tensor) -> Tensor:
        """Return the sum of the token vectors of each sequence, in fp32.

        Args:
            x: One vector per token.

        Shapes:
            x: (N, D); returns (S, D).
        """
        if len(self.lengths) == 1 and not torch.is_grad_enabled():
            return x.sum(0, keepdim=True, dtype=torch.float32)
        zeros = torch.zeros(len(self.lengths), x.shape[1], device=x.device)
        return zeros.index_add_(0, self.sequence_ids, x.float())

    def segment_max(self, x: Tensor) -> Tensor:
        """Return the element-wise maximum of the token vectors of each sequence, in fp32.

        Args:
            x: One vector per token.

        Shapes:
            x: (N, D); returns (S, D).
        """
        lowest = torch.full((len(self.lengths), x.shape[1]), -torch.inf, device=x.device)
        return lowest.scatter_reduce(0, self.sequence_ids[:, None].expand_as(x), x.float(), "amax")

    @cached_property
    def bucket_boundaries(self) -> list[int]:
        """Index of the first sequence of each bucket, followed by the number of sequences."""
        return _bucket_boundaries(self.lengths)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Groups of adjacent sequences of similar length, which attention pads to equal length."""
        return self.split_buckets(self.bucket_boundaries)

    def split_buckets(self, boundaries: Sequence[int]) -> tuple[Bucket, ...]:
        """Split the sequences into buckets.

        Args:
            boundaries: Index of the first sequence of each bucket, followed by the number of
                sequences. In cross-attention, keys are split at the boundaries of the query
                buckets.

        Returns:
            The buckets, in the order of the batch.
        """
        return tuple(_buckets(self, boundaries))

    def count_up_to(self, length: int) -> int:
        """Return the number of sequences with at most `length` tokens.

        These are the first sequences of the batch, because sequences are sorted by length.

        Args:
            length: Maximum number of tokens.
        """
        return bisect.bisect_right(self.lengths, length)

    def split(self, count: int) -> tuple[Packed, Packed]:
        """Return a layout of the first sequences, and a layout of the other sequences.

        Args:
            count: Number of sequences in the first layout.
        """
        device = self.sequence_ids.device
        first, rest = self.lengths[:count], self.lengths[count:]
        return (
            Packed.of(first, any_order=True).to(device),
            Packed.of(rest, any_order=True).to(device),
        )

    def reorder(self, order: Tensor) -> tuple[Packed, Tensor]:
        """Return a layout with selected sequences in a new order.

        Args:
            order: Indices of the selected sequences. An index may occur several times.

        Returns:
            The new layout and, for each token of the new layout, its index in this layout.

        Shapes:
            order: (S',); returned indices: (N',).
        """
        lengths = [self.lengths[index] for index in order.tolist()]
        layout = Packed.of(lengths, any_order=True).to(self.sequence_ids.device)
        return layout, self.first[order][layout.sequence_ids] + layout.positions

    def to(self, device: torch.device | str) -> Packed:
        """Return a copy with all tensors on a device.

        Args:
            device: The device.
        """
        return self.map_tensors(partial(_to_device, device=device))

    def map_tensors(self, function: Callable[[Any], Any]) -> Packed:
        """Return a copy with a function applied to each tensor.

        Args:
            function: Function that takes a tensor and returns a tensor.
        """
        return replace(
            self,
            cu_seqlens=function(self.cu_seqlens),
            sequence_ids=function(self.sequence_ids),
            positions=function(self.positions),
        )


@dataclass(frozen=True)
class Padded:
    """Layout of a padded batch, flattened to N = B · T tokens.

    Exported graphs use this layout instead of `Packed`, because the sizes of their inputs are
    unknown until they run. The class has all attributes of `Packed` that encoders and pooling
    functions use.

    Shapes:
        mask: (B, T), True at tokens, False at padding.
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

    def segment_sum(self, x: Tensor) -> Tensor:
        return (x.view(*self.mask.shape, -1).float() * self.mask[:, :, None]).sum(1)

    def segment_max(self, x: Tensor) -> Tensor:
        padding = ~self.mask[:, :, None]
        return (x.view(*self.mask.shape, -1).float() - padding.float() * MASKED_SCORE).amax(1)


MASKED_SCORE = 1e9
"""Value that is subtracted from scores at masked tokens. It is finite, because some runtimes of
exported graphs turn infinities into NaN."""

BUCKET_STEP = 16
"""Multiple to which the padded length of a bucket is rounded up.

Sequences share a bucket only if their lengths round up to the same multiple. This limits the number
of different tensor shapes, because oneDNN compiles code for each new shape (notes/2026-11.md).
"""

BUCKET_TOKENS = 512
"""Number of tokens from which a bucket accepts only sequences of equal length.

A smaller bucket also accepts slightly longer sequences, because padding a few tokens takes less
time than additional small matrix multiplications.
"""


@dataclass(frozen=True)
class Bucket:
    """Adjacent sequences that attention pads to one tensor (sequences, length).

    If all sequences have the same length, no padding is needed: the padded tensor is a view of the
    packed tensor, and the three tensors below are None.

    Shapes:
        scatter_indices: (tokens,), index of each token in the flattened padded tensor.
        gather_indices: (sequences · length,), index of the token that is copied to each element
            of the padded tensor. Padding is filled with the last token of the sequence.
        padding: (sequences, 1, 1, length), True at padding.
    """

    start: int
    """Index of the bucket's first token in the batch."""
    tokens: int
    """Number of tokens without padding."""
    sequences: int
    length: int
    scatter_indices: Tensor | None
    gather_indices: Tensor | None
    padding: Tensor | None


def _buckets(layout: Packed, boundaries: Sequence[int]) -> Iterator[Bucket]:
    lengths = np.asarray(layout.lengths)
    start = 0
    for i, j in itertools.pairwise(boundaries):
        part = lengths[i:j]
        tokens, longest = int(part.sum()), int(part.max())
        scatter = gather = padding = None
        if (part != longest).any():
            longest += -longest % BUCKET_STEP
            real = torch.arange(longest) < torch.from_numpy(part)[:, None]
            scatter = real.flatten().nonzero().squeeze(1).to(layout.sequence_ids.device)
            first = np.cumsum(part) - part
            tokens_at = first[:, None] + np.minimum(np.arange(longest), part[:, None] - 1)
            gather = torch.from_numpy(tokens_at.ravel()).to(layout.sequence_ids.device)
            padding = (~real)[:, None, None, :].to(layout.sequence_ids.device)
        yield Bucket(start, tokens, j - i, longest, scatter, gather, padding)
        start += tokens


def _bucket_boundaries(lengths: Sequence[int]) -> list[int]:
    """Group sequences of equal length. Buckets with few tokens also get longer sequences."""
    boundaries, tokens = [0], 0
    for index in range(1, len(lengths)):
        previous, length = lengths[index - 1], lengths[index]
        tokens += previous
        similar = -(-previous // BUCKET_STEP) == -(-length // BUCKET_STEP)
        if previous != length and not (similar and tokens < BUCKET_TOKENS):
            boundaries.append(index)
            tokens = 0
    return [*boundaries, len(lengths)] if lengths else []


class Tokens(Protocol):
    """Sequence of tokens: an encoded text or a pretraining sample. Shapes: ids and types (T,)."""

    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def types(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class Batch:
    """Packed batch of token ids, with the targets of a training step.

    Shapes:
        ids: (N,), token ids.
        types: (N,), token type (segment) ids.
        token_indices: (P,), indices of the tokens for which token-level heads compute outputs, such
            as masked tokens or the first token of each word. If None, all tokens.
        targets: Targets by head name, with one target per output of the head.
        example: (S,), index of the example that each sequence belongs to, if an example consists of
            several sequences (such as the choices of a question).
        source_order: (S,), for each sequence the index of its encoder input in `source`. The orders
            differ, because the sequences of `source` are sorted by length separately.
    """

    ids: Tensor
    types: Tensor
    layout: Packed
    """Lengths and boundaries of the sequences."""
    token_indices: Tensor | None = None
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    example: Tensor | None = None
    source: Batch | None = None
    """Input of the encoder, if this batch is the input of a decoder."""
    source_order: Tensor | None = None
    part: int = 0
    """Index of the part that the batch belongs to, if a step is split over several processes."""
    shared: bool = False
    """Whether each process has the same batch and computes only a part of its sequences."""
    window: int | None = None
    """Maximum distance at which tokens attend to each other. Default: the window of each layer."""

    @property
    def tokens(self) -> int:
        """Number of input tokens, including the source."""
        return self.layout.total + (0 if self.source is None else self.source.tokens)

    def as_source(self) -> Batch:
        """Return a decoder batch for the same texts, with this batch as the encoder input.

        In the decoder input, the last token of each sequence is moved to the start of the
        sequence. The decoder therefore computes the state of each token from the tokens before it
        (Lewis et al. 2020, section 3.1).
        """
        indices = torch.arange(-1, self.layout.total - 1, device=self.ids.device)
        indices[self.layout.first] = self.layout.cu_seqlens[1:] - 1
        return replace(self, ids=self.ids[indices], source=self)

    @staticmethod
    def of(
        sequences: Sequence[Tokens],
        *,
        token_indices: Sequence[NDArray[np.int64]] | None = None,
        targets: Mapping[str, Tensor] | None = None,
        example: Tensor | None = None,
        sources: Sequence[Tokens] | None = None,
    ) -> Batch:
        """Pack sequences into a batch.

        Args:
            sequences: The sequences, shortest first.
            token_indices: For each sequence, the tokens for which token-level heads compute
                outputs, as indices from the start of the sequence. Default: all tokens.
            targets: Targets by head name.
            example: Index of the example that each sequence belongs to.
            sources: Encoder input of each sequence, in the order of `sequences`. They may have any
                lengths.

        Returns:
            The batch, with tensors on the CPU.

        Raises:
            ValueError: If a sequence is empty or `sequences` are not sorted by length.

        Shapes:
            token_indices: one array (P_s,) per sequence; example: (S,). `Batch` describes the
                returned tensors.
        """
        layout = Packed.of([len(sequence.ids) for sequence in sequences])
        packed_indices = None
        if token_indices is not None:
            starts = layout.first.tolist()
            shifted = [own + start for own, start in zip(token_indices, starts, strict=True)]
            packed_indices = torch.from_numpy(np.concatenate(shifted))
        source = source_order = None
        if sources is not None:
            order = sorted(range(len(sources)), key=lambda index: len(sources[index].ids))
            source = Batch.of([sources[index] for index in order])
            source_order = torch.from_numpy(np.argsort(order))
        return Batch(
            ids=torch.from_numpy(np.concatenate([sequence.ids for sequence in sequences])),
            types=torch.from_numpy(np.concatenate([sequence.types for sequence in sequences])),
            layout=layout,
            token_indices=packed_indices,
            targets=targets or {},
            example=example,
            source=source,
            source_order=source_order,
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return a copy with all tensors on a device. Pinned tensors are copied asynchronously.

        Args:
            device: The device.
        """
        return self.map_tensors(partial(_to_device, device=device))

    def map_tensors(self, function: Callable[[Any], Any]) -> Batch:
        """Return a copy with a function applied to each tensor.

        Args:
            function: Function that takes and returns a tensor, such as `Tensor.pin_memory`.
        """

        def map_optional(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else function(tensor)

        return replace(
            self,
            ids=function(self.ids),
            types=function(self.types),
            layout=self.layout.map_tensors(function),
            token_indices=map_optional(self.token_indices),
            example=map_optional(self.example),
            targets={name: function(t) for name, t in self.targets.items()},
            source=None if self.source is None else self.source.map_tensors(function),
            source_order=map_optional(self.source_order),
        )


def _to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    # Copies to the CPU must be synchronous. Otherwise, code could read them before they are
    # complete.
    return tensor.to(device, non_blocking=tensor.device.type == "cpu")


def by_length(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Group sequences of similar length into batches, and yield the sequence indices of each.

    Batches with the shortest sequences come first.

    Args:
        lengths: Number of tokens of each sequence, in any order.
        max_batch_tokens: Maximum number of tokens of a batch. A longer sequence gets its own batch.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for part in split_by_tokens([lengths[index] for index in order], max_batch_tokens):
        yield order[part]


def split_by_tokens(lengths: Sequence[int], max_batch_tokens: int) -> list[slice]:
    """Split consecutive sequences into batches.

    Args:
        lengths: Number of tokens of each sequence.
        max_batch_tokens: Maximum number of tokens of a batch. A longer sequence gets its own batch.

    Returns:
        For each batch, the slice of its sequences.
    """
    slices, total, start = [], 0, 0
    for index, length in enumerate(lengths):
        if index > start and total + length > max_batch_tokens:
            slices.append(slice(start, index))
            start, total = index, 0
        total += length
    if start < len(lengths):
        slices.append(slice(start, len(lengths)))
    return slices
