"""Inference engine, which sorts sequences by length, packs them into batches, and runs a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch, Tokens, by_length
from bertkit.engine.packed_linear import Replace, packed
from bertkit.engine.pruned_heads import without_pruned_heads
from bertkit.models.model import Model
from bertkit.nn.precision import Precision, resolve
from bertkit.text.encoding import Encoding

MAX_BATCH_TOKENS = 4096
"""Default maximum number of tokens in a batch. On two CPU cores, larger batches are not faster
(notes/2026-11.md).
"""

Forward = Callable[[Model, Batch], Tensor]
"""Function that runs a model on a batch. It returns one row per sequence, one per token, or one per
token index in `Batch.token_indices`.
"""

Read = Callable[[Tensor, Batch], Tensor]
"""Function that computes one row per sequence from the hidden states of a batch.

Shapes: (N, D) -> (S, …).
"""


class FasterLayers(Protocol):
    """Alternative implementation of a model's layers that is faster for some batches."""

    @property
    def pooling(self) -> str:
        """Pooling that `vectors` applies."""

    def vectors(self, encodings: Sequence[Encoding]) -> NDArray[np.float32] | None:
        """Compute one embedding per text, or return None if the model itself is faster.

        Shapes:
            returns: (S, D).
        """

    def __call__(self, batch: Batch) -> Tensor | None:
        """Compute the hidden states of a batch, or return None if the model itself is faster.

        Shapes:
            returns: (N, D).
        """


class Engine:
    """Inference engine, which runs an optimized copy of a model. The original does not change.

    Args:
        model: The model.
        precision: Precision of the computation. If None, the engine runs the model itself instead
            of an optimized copy.
        max_batch_tokens: Maximum number of tokens in a batch.
        batch_invariant: Whether to run each sequence separately, which is slower. The outputs of a
            sequence are then bit-identical, whatever other sequences are passed with it (on the
            same machine and with the same number of threads).
        int8: Function that replaces linear layers of the copy by int8 layers.
        device: Device of the copy. Default: the device of the model.
    """

    def __init__(
        self,
        model: Model,
        *,
        precision: Precision | None = "fp32",
        max_batch_tokens: int = MAX_BATCH_TOKENS,
        batch_invariant: bool = False,
        int8: Replace | None = None,
        device: str | None = None,
    ) -> None:
        weight = next(model.parameters())
        if precision is None:
            self.device, self.dtype, self.model = weight.device, weight.dtype, model
        else:
            self.device = weight.device if device is None else torch.device(device)
            self.dtype = resolve(precision, self.device.type)
            self.model = packed(without_pruned_heads(model), self.dtype, int8, self.device)
        self.is_int8 = int8 is not None
        """Whether linear layers are computed in int8."""
        self.faster_layers: FasterLayers | None = None
        # The shape of a matrix multiplication affects its rounding, and depends on all sequences
        # of the batch.
        self.max_batch_tokens = 1 if batch_invariant else max_batch_tokens

    def with_max_batch_tokens(self, tokens: int) -> Engine:
        """Return an engine for the same model that allows this number of tokens per batch."""
        engine = copy.copy(self)
        engine.max_batch_tokens = tokens
        return engine

    def with_faster_layers(self, layers: FasterLayers) -> Engine:
        """Return an engine for the same model that uses an alternative implementation of layers."""
        engine = copy.copy(self)
        engine.model, engine.faster_layers = copy.copy(self.model), layers
        engine.model.faster_layers = layers
        return engine

    def run(
        self,
        sequences: Sequence[Tokens],
        forward: Forward,
        token_indices: Sequence[NDArray[np.int64]] | None = None,
        sources: Sequence[Tokens] | None = None,
    ) -> list[NDArray[np.float32]]:
        """Compute the model's outputs for each sequence.

        Args:
            sequences: The sequences, in any order.
            forward: Function that computes the outputs of a batch.
            token_indices: For each sequence, the indices of the tokens for which `forward` computes
                outputs.
            sources: Encoder input for each sequence, if `sequences` are the input of a decoder.

        Returns:
            The outputs of each sequence, in the order of `sequences`.

        Shapes:
            Each array is (1, …) if `forward` returns one row per sequence, (T, …) if it returns one
            row per token, and (P, …) if it returns one row for each of P token indices.
        """
        outputs = [np.empty(0, np.float32)] * len(sequences)
        for index, rows in self.stream(sequences, forward, token_indices, sources):
            outputs[index] = rows.numpy()
        return outputs

    @torch.inference_mode()
    def rows(self, sequences: Sequence[Tokens], read: Read) -> NDArray[np.float32]:
        """Compute one row per sequence from the hidden states of the encoder.

        Args:
            sequences: S sequences, in any order.
            read: Function that computes the rows of a batch, such as a pooling function.

        Returns:
            The rows, in the order of `sequences`.

        Shapes:
            returns: (S, …).
        """
        rows = np.empty((0, 0), np.float32)
        for indices, batch in self.batches(sequences):
            part = read(self.model.encoder_states(batch), batch).float().cpu().numpy()
            if not len(rows):
                rows = np.empty((len(sequences), *part.shape[1:]), np.float32)
            rows[indices] = part
        return rows

    @torch.inference_mode()
    def stream(
        self,
        sequences: Sequence[Tokens],
        forward: Forward,
        token_indices: Sequence[NDArray[np.int64]] | None = None,
        sources: Sequence[Tokens] | None = None,
    ) -> Iterator[tuple[int, Tensor]]:
        """Compute the model's outputs batch by batch, starting with the shortest sequences.

        Args:
            sequences: See `run`.
            forward: See `run`.
            token_indices: See `run`.
            sources: See `run`.

        Yields:
            The index of a sequence in `sequences`, and its outputs.
        """
        for indices, batch in self.batches(sequences, token_indices, sources):
            outputs = forward(self.model, batch).cpu()
            if token_indices is not None:
                counts = [len(token_indices[index]) for index in indices]
            elif len(outputs) == len(indices):
                counts = [1] * len(indices)
            else:
                counts = list(batch.layout.lengths)
            yield from zip(indices, outputs.split(counts), strict=True)

    def batches(
        self,
        sequences: Sequence[Tokens],
        token_indices: Sequence[NDArray[np.int64]] | None = None,
        sources: Sequence[Tokens] | None = None,
    ) -> Iterator[tuple[list[int], Batch]]:
        """Pack sequences into batches on the engine's device, starting with the shortest sequences.

        Args:
            sequences: See `run`.
            token_indices: See `run`.
            sources: See `run`.

        Yields:
            The indices of the sequences in a batch, and the batch.
        """
        lengths = [len(sequence.ids) for sequence in sequences]
        source_lengths = [0] * len(lengths) if sources is None else [len(s.ids) for s in sources]
        totals = [sum(pair) for pair in zip(lengths, source_lengths, strict=True)]
        for group in by_length(totals, self.max_batch_tokens):
            indices = sorted(group, key=lengths.__getitem__)
            batch = Batch.of(
                [sequences[index] for index in indices],
                token_indices=token_indices and [token_indices[index] for index in indices],
                sources=sources and [sources[index] for index in indices],
            )
            yield indices, batch.to(self.device) if self.device.type != "cpu" else batch
