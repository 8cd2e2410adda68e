"""What a model that writes can do: read a prompt, then one token of each row after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch, Packed
from bertkit.errors import DataError
from bertkit.extensions.generation.cache import Cache, Sources
from bertkit.models.encoder import Encoder
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import CrossAttention, Trace


@dataclass(frozen=True)
class Request:
    """What is gone on from. Shapes: prompt (T,), one token at least; source (T',), what an encoder
    reads.
    """

    prompt: NDArray[np.int64]
    source: NDArray[np.int64] | None = None
    number: int = 0
    """Tells several texts from one prompt apart."""

    @property
    def tokens(self) -> int:
        """All that are read."""
        return len(self.prompt) + (0 if self.source is None else len(self.source))


class StepperState(Protocol):
    """What a model stores of the sequences that it generates."""

    def advance(self, counts: Tensor) -> None:
        """Keep this number of tokens of each sequence from the last step. Shapes: (R,)."""

    def keep(self, rows: Tensor) -> None:
        """Select sequences, in this order; an index may occur twice."""

    def branch(self, beams: int) -> StepperState:
        """Repeat each sequence `beams` times, as neighbors; this state must not be used again.

        `keep` then selects the same number of beams for each request that continues.
        """

    def join(self, other: Any) -> None:
        """Append the sequences of another state of the same type."""


@runtime_checkable
class Stateful(Protocol):
    """An encoder or decoder with its own state from token to token, such as an LSTM."""

    def begin(self, batch: Batch, memory: Any) -> tuple[Tensor, StepperState]:
        """Return the hidden states of the batch and the state after each sequence.

        Shapes: N tokens of R sequences -> (N, D).
        """

    def step(self, state: Any, ids: Tensor) -> Tensor:
        """Return the hidden states of C more tokens of each sequence.

        Shapes: (R, C) -> (R, C, D).
        """


class Stepper:
    """Generation with a decoder-only model, one token after another.

    Args:
        model: The model, with the head `lm`.
        length: Maximum number of tokens; by default the model's.
        vocab: Number of tokens that can be generated; by default all.
    """

    def __init__(
        self, model: Model, length: int | None = None, *, vocab: int | None = None
    ) -> None:
        self.model, self.vocab = model, vocab or model.config.vocab
        self.length = min(length or model.config.max_positions, model.config.max_positions)

    def room(self, request: Request, max_tokens: int | None = None) -> int:
        """Return the number of tokens that can be generated, up to `max_tokens`.

        Raises:
            DataError: If it is zero.
        """
        return _room(self.length, request, max_tokens)

    @torch.inference_mode()
    def start(self, requests: Sequence[Request]) -> tuple[StepperState, Tensor]:
        """Read R prompts; return their state, and the logits of their next tokens (R, V)."""
        batch, back = _packed([request.prompt for request in requests], self._device)
        states, state = _begin(self._stack, batch)
        state.keep(back)
        return state, self._logits(states, batch)[back]

    @torch.inference_mode()
    def step(self, state: StepperState, ids: Tensor) -> Tensor:
        """Read C more tokens of each sequence; return the logits of the token after each.

        Call `state.advance` afterwards with the number of tokens to keep.

        Shapes: (R, C) -> (R, C, V).
        """
        flat, stack = ids.flatten(), self._stack
        if isinstance(stack, Stateful):
            states = stack.step(state, ids).flatten(0, 1)
            batch = Batch(flat, torch.zeros_like(flat), Packed.of([1] * len(flat)))
        else:
            assert isinstance(state, Cache)
            step = state.append(ids.shape[1])
            batch = Batch(flat, torch.zeros_like(flat), cast(Packed, step.layout))
            states = stack(batch, step=step)
        return self._logits(states, batch).view(*ids.shape, -1)

    @torch.inference_mode()
    def read(self, request: Request, ids: Sequence[int], trace: Trace | None = None) -> Tensor:
        """The logits of what follows the prompt, and each of the tokens behind it, in one forward
        (teacher forcing). Shapes: T ids -> (1 + T, V).
        """
        text = np.concatenate([request.prompt, np.array(ids, dtype=np.int64)])
        batch, _ = _packed([text], self._device)
        memory = None
        if request.source is not None:
            source, _ = _packed([request.source], self._device)
            batch, memory = replace(batch, source=source), self.model.encoder.memory(source)
        states = self._stack(batch, trace, memory)
        behind = torch.arange(len(request.prompt) - 1, len(text), device=self._device)
        return self._logits(states, replace(batch, token_indices=behind))

    @property
    def _stack(self) -> Encoder:
        """What writes."""
        return self.model.encoder

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _logits(self, states: Tensor, batch: Batch) -> Tensor:
        logits: Tensor = self.model.heads["lm"](states, batch)
        return logits[:, : self.vocab].float()  # a padded vocabulary has more rows than tokens


class DecoderStepper(Stepper):
    """A decoder with the head `lm`, which attends to what its encoder reads (Marian, BART, T5).

    `length` is what the encoder reads at most. By default a source of n tokens has room for
    2 n + 20.
    """

    def room(self, request: Request, max_tokens: int | None = None) -> int:
        assert request.source is not None
        if len(request.source) > self.length:
            raise DataError(
                f"a source of {len(request.source):,} tokens is longer than the model reads, "
                f"{self.length:,}; shorten it"
            )
        usual = 2 * len(request.source) + 20
        return _room(self._stack.config.max_positions, request, max_tokens or usual)

    @torch.inference_mode()
    def start(self, requests: Sequence[Request]) -> tuple[StepperState, Tensor]:
        texts = [request.source for request in requests if request.source is not None]
        sources, place = _packed(texts, self._device)
        batch, back = _packed([request.prompt for request in requests], self._device)
        batch = replace(batch, source=sources, source_order=place[back.argsort()])
        memory = self.model.encoder.memory(sources)
        states, state = _begin(self._stack, batch, memory)
        state.keep(back)
        if isinstance(state, Cache):
            stack = cast(Transformer, self._stack)
            blocks = (stack.blocks[depth] for depth in stack.config.depths)
            projections = [cast(CrossAttention, one.cross).keys_values(memory) for one in blocks]
            state.sources = Sources.of(projections, sources.layout, place)
        return state, self._logits(states, batch)[back]

    @property
    def _stack(self) -> Encoder:
        assert self.model.decoder is not None
        return self.model.decoder


def stepper_of(model: Model, length: int | None = None, *, vocab: int | None = None) -> Stepper:
    """Return the stepper of a model that generates text."""
    kind = Stepper if model.decoder is None else DecoderStepper
    return kind(model, length, vocab=vocab)


def _begin(stack: Encoder, batch: Batch, memory: Any = None) -> tuple[Tensor, StepperState]:
    """Compute the hidden states of the prompts and the state that the next step needs."""
    if isinstance(stack, Stateful):
        return stack.begin(batch, memory)
    trace = Trace(weights=False, projections=True)
    states = stack(batch, trace, memory)
    return states, Cache.of(trace.keys, trace.values, batch.layout)


def _packed(texts: Sequence[NDArray[np.int64]], device: torch.device) -> tuple[Batch, Tensor]:
    """A batch that answers at the last token of each text, and the place of each in it."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    layout = Packed.of([len(texts[place]) for place in order])
    ids = torch.from_numpy(np.concatenate([texts[place] for place in order]))
    batch = Batch(ids, torch.zeros_like(ids), layout, token_indices=layout.cu_seqlens[1:] - 1)
    return batch.to(device), torch.tensor(order).argsort().to(device)


def _room(length: int, request: Request, max_tokens: int | None) -> int:
    if len(request.prompt) >= length:
        raise DataError(
            f"a prompt of {len(request.prompt):,} tokens fills the model, which has room for "
            f"{length:,}; shorten it"
        )
    room = length - len(request.prompt)
    return room if max_tokens is None else min(room, max_tokens)
