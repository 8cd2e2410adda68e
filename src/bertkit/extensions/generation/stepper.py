"""What a model that writes can do: read a prompt, then one token of each row after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch, Packed
from bertkit.errors import DataError
from bertkit.extensions.generation.cache import Cache, Sources
from bertkit.models.model import Decoder, Encoder, Model
from bertkit.models.recurrent import Cells
from bertkit.models.seq2seq import Encoded, RecurrentDecoder, RecurrentEncoder, SourceStates
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import CrossAttention, Trace


@dataclass(frozen=True)
class Request:
    """What is gone on from. Shapes: prompt (T,), one token at least; source (T',), what an encoder
    reads."""

    prompt: NDArray[np.int64]
    source: NDArray[np.int64] | None = None
    number: int = 0
    """Tells several texts from one prompt apart."""

    @property
    def tokens(self) -> int:
        """All that are read."""
        return len(self.prompt) + (0 if self.source is None else len(self.source))


class StepperState(Protocol):
    """What a model remembers of the rows that it writes."""

    def advance(self, counts: Tensor) -> None:
        """Of the tokens of the last step these many of each row stay. Shapes: (R,)."""

    def keep(self, rows: Tensor) -> None:
        """These rows alone, in this order; one may come twice."""

    def branch(self, beams: int) -> StepperState:
        """Each row so many times, neighbors: the beams of a search, of which `keep` then takes as
        many of each request that stays. This one is used no more."""


class Stepper(Protocol):
    """A model that writes, one token after the other."""

    def room(self, request: Request, max_tokens: int | None = None) -> int:
        """How many tokens may be written, `max_tokens` at most. Raises: DataError if none."""

    def start(self, requests: Sequence[Request]) -> tuple[StepperState, Tensor]:
        """Read the prompts; the logits of what comes next. Shapes: R requests -> (R, V)."""

    def step(self, state: StepperState, ids: Tensor) -> Tensor:
        """Read C more tokens of each row, and the logits of what follows each; `state.advance`
        says how many stay. Shapes: (R, C) -> (R, C, V)."""

    def join(self, state: StepperState, other: StepperState) -> None:
        """The rows of another state behind those of this one."""


class CausalStepper:
    """A stack whose tokens see those before them alone, with the head `lm` (GPT).

    `vocab` is how many of its pieces may be written, all by default.
    """

    def __init__(
        self, model: Model, length: int | None = None, *, vocab: int | None = None
    ) -> None:
        self.model, self.vocab = model, vocab or model.config.vocab
        self.length = min(length or model.config.max_positions, model.config.max_positions)

    def room(self, request: Request, max_tokens: int | None = None) -> int:
        return _room(self.length, request, max_tokens)

    @torch.inference_mode()
    def start(self, requests: Sequence[Request]) -> tuple[StepperState, Tensor]:
        batch, back = _packed([request.prompt for request in requests], self._device)
        trace = Trace(weights=False, projections=True)
        logits = self._logits(self._stack(batch, trace), batch)
        cache = Cache.of(trace.keys, trace.values, batch.layout)
        cache.keep(back)
        return cache, logits[back]

    @torch.inference_mode()
    def step(self, state: StepperState, ids: Tensor) -> Tensor:
        assert isinstance(state, Cache)
        step, flat = state.append(ids.shape[1]), ids.flatten()
        batch = Batch(flat, torch.zeros_like(flat), cast(Packed, step.layout))
        logits = self._logits(self._stack(batch, step=step), batch)
        return logits.view(*ids.shape, -1)

    @torch.inference_mode()
    def read(self, request: Request, ids: Sequence[int], trace: Trace | None = None) -> Tensor:
        """The logits of what follows the prompt, and each of the tokens behind it, in one forward
        (teacher forcing). Shapes: T ids -> (1 + T, V)."""
        text = np.concatenate([request.prompt, np.array(ids, dtype=np.int64)])
        batch, _ = _packed([text], self._device)
        memory = None
        if request.source is not None:
            source, _ = _packed([request.source], self._device)
            batch, memory = replace(batch, source=source), self.model.memory(source)
        states = self._stack(batch, trace, memory)
        behind = torch.arange(len(request.prompt) - 1, len(text), device=self._device)
        return self._logits(states, replace(batch, token_indices=behind))

    @property
    def _stack(self) -> Encoder | Decoder:
        """What writes."""
        return self.model.encoder

    def join(self, state: StepperState, other: StepperState) -> None:
        assert isinstance(state, Cache)
        assert isinstance(other, Cache)
        state.join(other)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _logits(self, states: Tensor, batch: Batch) -> Tensor:
        logits: Tensor = self.model.heads["lm"](states, batch)
        return logits[:, : self.vocab].float()  # a padded vocabulary has more rows than tokens


class DecoderStepper(CausalStepper):
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
        batch, back, sources, place = self._opened(requests)
        states, stack = self.model.encoder(sources), cast(Transformer, self._stack)
        trace = Trace(weights=False, projections=True)
        logits = self._logits(stack(batch, trace, states), batch)
        cache = Cache.of(trace.keys, trace.values, batch.layout)
        cache.keep(back)
        blocks = (stack.blocks[depth] for depth in stack.config.depths)
        projections = [cast(CrossAttention, one.cross).keys_values(states) for one in blocks]
        cache.sources = Sources.of(projections, sources.layout, place)
        return cache, logits[back]

    def _opened(self, requests: Sequence[Request]) -> tuple[Batch, Tensor, Batch, Tensor]:
        """The prompts and the sources, and the place of each request in both."""
        texts = [request.source for request in requests if request.source is not None]
        sources, place = _packed(texts, self._device)
        batch, back = _packed([request.prompt for request in requests], self._device)
        batch = replace(batch, source=sources, source_order=place[back.argsort()])
        return batch, back, sources, place

    @property
    def _stack(self) -> Decoder:
        assert self.model.decoder is not None
        return self.model.decoder


class RecurrentState:
    """What LSTMs remember: where each row's cells are, and what a decoder may look at."""

    def __init__(self, cells: Cells, sources: SourceStates | None = None) -> None:
        self.cells, self.sources = cells, sources
        self.steps: list[Cells] = []
        """The cells behind each token of the last step."""

    def advance(self, counts: Tensor) -> None:
        rows = torch.arange(len(counts), device=counts.device)
        every = zip(self.cells, *self.steps, strict=True)
        hidden, cell = (torch.stack(part)[counts, :, rows].transpose(0, 1) for part in every)
        self.cells, self.steps = (hidden.contiguous(), cell.contiguous()), []

    def keep(self, rows: Tensor) -> None:
        self.cells = self.cells[0][:, rows], self.cells[1][:, rows]
        self.sources = None if self.sources is None else self.sources.rows(rows)

    def branch(self, beams: int) -> RecurrentState:
        rows = torch.arange(self.cells[0].shape[1], device=self.cells[0].device)
        self.keep(rows.repeat_interleave(beams))
        return self

    def join(self, other: RecurrentState) -> None:
        """The rows of another behind these."""
        hidden, cell = (torch.cat(part, 1) for part in zip(self.cells, other.cells, strict=True))
        self.cells = hidden, cell
        if self.sources is not None and other.sources is not None:
            self.sources = self.sources.joined(other.sources)


class RecurrentStepper(CausalStepper):
    """LSTMs that read forward, with the head `lm`; a step costs the same after any text."""

    @torch.inference_mode()
    def start(self, requests: Sequence[Request]) -> tuple[StepperState, Tensor]:
        batch, back = _packed([request.prompt for request in requests], self._device)
        states, cells = cast(RecurrentEncoder, self._stack).read(batch)
        state = RecurrentState(cells)
        state.keep(back)
        return state, self._logits(states, batch)[back]

    @torch.inference_mode()
    def step(self, state: StepperState, ids: Tensor) -> Tensor:
        assert isinstance(state, RecurrentState)
        cells, logits = state.cells, []
        layout, state.steps = Packed.of([1] * len(ids)).to(ids.device), []
        for column in ids.T:
            batch = Batch(column, torch.zeros_like(column), layout)
            states, cells = self._read(batch, state.sources, cells)
            state.steps.append(cells)
            logits.append(self._logits(states, batch))
        return torch.stack(logits, 1)

    def _read(
        self, batch: Batch, sources: SourceStates | None, cells: Cells
    ) -> tuple[Tensor, Cells]:
        """The states of the next tokens, and the cells behind them."""
        return cast(RecurrentEncoder, self._stack).read(batch, cells)

    def join(self, state: StepperState, other: StepperState) -> None:
        assert isinstance(state, RecurrentState)
        assert isinstance(other, RecurrentState)
        state.join(other)


class RecurrentDecoderStepper(RecurrentStepper, DecoderStepper):
    """The same of a decoder of LSTMs, which starts where its encoder ended."""

    @torch.inference_mode()
    def start(self, requests: Sequence[Request]) -> tuple[StepperState, Tensor]:
        batch, back, sources, _ = self._opened(requests)
        decoder = cast(RecurrentDecoder, self._stack)
        looked_at, cells = decoder.start(batch, cast(Encoded, self.model.memory(sources)))
        states, cells = decoder.read(batch, looked_at, cells)
        state = RecurrentState(cells, looked_at)
        state.keep(back)
        return state, self._logits(states, batch)[back]

    def _read(
        self, batch: Batch, sources: SourceStates | None, cells: Cells
    ) -> tuple[Tensor, Cells]:
        return cast(RecurrentDecoder, self._stack).read(batch, sources, cells)


def stepper_of(
    model: Model, length: int | None = None, *, vocab: int | None = None
) -> CausalStepper:
    """The stepper of a model that writes, whatever it is made of."""
    recurrent = model.config.recurrent is not None
    if model.decoder is None:
        kind = RecurrentStepper if recurrent else CausalStepper
    else:
        kind = RecurrentDecoderStepper if recurrent else DecoderStepper
    return kind(model, length, vocab=vocab)


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
