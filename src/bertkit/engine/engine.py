"""The one way to run a model over encoded texts: sort by length, cut, pack, compute, restore."""

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
from bertkit.engine.pruned_heads import without_dead_heads
from bertkit.models.model import Model
from bertkit.nn.precision import Precision, resolve
from bertkit.text.encoding import Encoding

MAX_BATCH_TOKENS = 4096
"""Tokens of a batch; on two cores more gain nothing (notes/2026-11.md)."""

Forward = Callable[[Model, Batch], Tensor]
"""Outputs of a batch: a row for each sequence, for each token, or for each token index."""

Read = Callable[[Tensor, Batch], Tensor]
"""Outputs from the encoder's states: (N, D) -> (S, …), a row for each sequence."""


class FasterLayers(Protocol):
    """Another implementation of a model's layers, which is faster for some batches."""

    @property
    def pooling(self) -> str:
        """Pooling of `vectors`."""

    def vectors(self, encodings: Sequence[Encoding]) -> NDArray[np.float32] | None:
        """Return a vector per text, or None if the model is faster. Shapes: (S, D)."""

    def __call__(self, batch: Batch) -> Tensor | None:
        """Return the states of a batch, or None if the model is faster. Shapes: (N, D)."""


class Engine:
    """A model ready for inference; it never changes the model it was given.

    With `batch_invariant` a text's states are the same to the last bit whatever it is run with (on
    one machine, with as many threads), for each goes through the model by itself: slower. `int8`
    replaces linear layers by layers in integers. `precision` None runs the model itself, as it is,
    in place of a copy that is packed for inference. The copy computes on `device`, by default where
    the model is.
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
            self.model = packed(without_dead_heads(model), self.dtype, int8, self.device)
        self.integers = int8 is not None
        """Whether linear layers compute in integers."""
        self.faster_layers: FasterLayers | None = None
        # matrix products round by their shape, which is a text's own only when it is alone
        self.max_batch_tokens = 1 if batch_invariant else max_batch_tokens

    def with_max_batch_tokens(self, tokens: int) -> Engine:
        """An engine of the same model with other batches."""
        other = copy.copy(self)
        other.max_batch_tokens = tokens
        return other

    def with_faster_layers(self, layers: FasterLayers) -> Engine:
        """Return an engine of the same model with other layers for some batches."""
        other = copy.copy(self)
        other.model, other.faster_layers = copy.copy(self.model), layers
        other.model.faster_layers = layers
        return other

    def run(
        self,
        sequences: Sequence[Tokens],
        forward: Forward,
        token_indices: Sequence[NDArray[np.int64]] | None = None,
        sources: Sequence[Tokens] | None = None,
    ) -> list[NDArray[np.float32]]:
        """`forward` of each sequence, in the order given; `sources` are what an encoder reads for
        each where they are a decoder's.

        Shapes: (1, …) for each where `forward` gives a row for a sequence; (T, …) where it gives
        one for a token, or for each of its `token_indices`.
        """
        outputs = [np.empty(0, np.float32)] * len(sequences)
        for place, rows in self.stream(sequences, forward, token_indices, sources):
            outputs[place] = rows.numpy()
        return outputs

    @torch.inference_mode()
    def rows(self, sequences: Sequence[Tokens], read: Read) -> NDArray[np.float32]:
        """`read` of each sequence, in the order given. Shapes: S sequences -> (S, …)."""
        rows = np.empty((0, 0), np.float32)
        for places, batch in self.batches(sequences):
            part = read(self.model.encoder_states(batch), batch).float().cpu().numpy()
            if not len(rows):
                rows = np.empty((len(sequences), *part.shape[1:]), np.float32)
            rows[places] = part
        return rows

    @torch.inference_mode()
    def stream(
        self,
        sequences: Sequence[Tokens],
        forward: Forward,
        token_indices: Sequence[NDArray[np.int64]] | None = None,
        sources: Sequence[Tokens] | None = None,
    ) -> Iterator[tuple[int, Tensor]]:
        """The outputs of each sequence as soon as they are there, shortest sequences first, each
        with the place of its sequence."""
        for places, batch in self.batches(sequences, token_indices, sources):
            outputs = forward(self.model, batch).cpu()
            if token_indices is not None:
                counts = [len(token_indices[place]) for place in places]
            elif len(outputs) == len(places):
                counts = [1] * len(places)
            else:
                counts = list(batch.layout.lengths)
            yield from zip(places, outputs.split(counts), strict=True)

    def batches(
        self,
        sequences: Sequence[Tokens],
        token_indices: Sequence[NDArray[np.int64]] | None = None,
        sources: Sequence[Tokens] | None = None,
    ) -> Iterator[tuple[list[int], Batch]]:
        """Packed batches, shortest sequences first, each with the places of its sequences."""
        own = [len(sequence.ids) for sequence in sequences]
        read = [0] * len(own) if sources is None else [len(source.ids) for source in sources]
        for group in by_length(list(map(sum, zip(own, read, strict=True))), self.max_batch_tokens):
            places = sorted(group, key=own.__getitem__)
            batch = Batch.of(
                [sequences[place] for place in places],
                token_indices=token_indices and [token_indices[place] for place in places],
                sources=sources and [sources[place] for place in places],
            )
            yield places, batch.to(self.device) if self.device.type != "cpu" else batch
