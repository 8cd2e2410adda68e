"""Autoregressive decoding: the model processes the prompts, then one new token at a time."""

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
    """Prompt to continue and, for an encoder-decoder model, the source text of the encoder.

    Shapes:
        prompt: (T,), with at least one token.
        source: (T',).
    """

    prompt: NDArray[np.int64]
    source: NDArray[np.int64] | None = None
    number: int = 0
    """Index of this text if several texts are generated for the same prompt."""

    @property
    def tokens(self) -> int:
        """Number of tokens in the prompt and the source."""
        return len(self.prompt) + (0 if self.source is None else len(self.source))


class StepperState(Protocol):
    """State of a model between two decoding steps."""

    def advance(self, counts: Tensor) -> None:
        """Keep only the first `counts` tokens of each sequence in the last step.

        Shapes:
            counts: (R,).
        """

    def keep(self, rows: Tensor) -> None:
        """Keep only the sequences with these indices, in this order.

        An index may occur repeatedly.
        """

    def branch(self, beams: int) -> StepperState:
        """Return a state in which each sequence is repeated `beams` times for beam search.

        The copies of a sequence are adjacent, as with `repeat_interleave`. Do not use this state
        afterwards. Each call of `keep` on the new state must select `beams` beams for each request
        that continues.
        """

    def join(self, other: Any) -> None:
        """Append the sequences of another state of the same type."""


@runtime_checkable
class Stateful(Protocol):
    """Encoder or decoder with its own recurrent state, such as an LSTM."""

    def begin(self, batch: Batch, memory: Any) -> tuple[Tensor, StepperState]:
        """Process the prompts in a batch.

        Returns:
            The hidden states of all tokens, and the recurrent state after each prompt.

        Shapes:
            Hidden states: (N, D) for N tokens.
        """

    def step(self, state: Any, ids: Tensor) -> Tensor:
        """Process C more tokens of each sequence, and return their hidden states.

        Shapes:
            ids: (R, C); returns (R, C, D).
        """


class Stepper:
    """Decoder-only model that is run step by step to generate text.

    Args:
        model: The model, which must have the head `lm`.
        length: Maximum number of tokens in a sequence. Default: the maximum length of the model.
        vocab: Number of tokens that can be generated. Default: all rows of the output matrix.
    """

    def __init__(
        self, model: Model, length: int | None = None, *, vocab: int | None = None
    ) -> None:
        self.model, self.vocab = model, vocab or model.config.vocab
        self.length = min(length or model.config.max_positions, model.config.max_positions)

    def max_new_tokens(self, request: Request, max_tokens: int | None = None) -> int:
        """Return the number of tokens that can be generated for a request, at most `max_tokens`.

        Raises:
            DataError: If no token can be generated.
        """
        return _max_new_tokens(self.length, request, max_tokens)

    @torch.inference_mode()
    def start(self, requests: Sequence[Request]) -> tuple[StepperState, Tensor]:
        """Process the prompts of R requests.

        Returns:
            The state after the prompts, and the logits of the next token of each sequence.

        Shapes:
            Logits: (R, V).
        """
        batch, back = _pack([request.prompt for request in requests], self._device)
        states, state = _begin(self._decoder, batch)
        state.keep(back)
        return state, self._logits(states, batch)[back]

    @torch.inference_mode()
    def step(self, state: StepperState, ids: Tensor) -> Tensor:
        """Process C more tokens of each sequence.

        Afterwards, call `state.advance` with the number of tokens to keep in each sequence.

        Returns:
            For each of these tokens, the logits of the token after it.

        Shapes:
            ids: (R, C); returns (R, C, V).
        """
        flat, decoder = ids.flatten(), self._decoder
        if isinstance(decoder, Stateful):
            states = decoder.step(state, ids).flatten(0, 1)
            batch = Batch(flat, torch.zeros_like(flat), Packed.of([1] * len(flat)))
        else:
            assert isinstance(state, Cache)
            step = state.append(ids.shape[1])
            batch = Batch(flat, torch.zeros_like(flat), cast(Packed, step.layout))
            states = decoder(batch, step=step)
        return self._logits(states, batch).view(*ids.shape, -1)

    @torch.inference_mode()
    def read(self, request: Request, ids: Sequence[int], trace: Trace | None = None) -> Tensor:
        """Compute the logits after the prompt and after each given token in one forward pass.

        This is known as teacher forcing.

        Args:
            request: The prompt and, for an encoder-decoder model, the source.
            ids: T tokens that follow the prompt.
            trace: Object that records the attention weights. Default: they are not recorded.

        Shapes:
            Returns (1 + T, V).
        """
        text = np.concatenate([request.prompt, np.array(ids, dtype=np.int64)])
        batch, _ = _pack([text], self._device)
        memory = None
        if request.source is not None:
            source, _ = _pack([request.source], self._device)
            batch, memory = replace(batch, source=source), self.model.encoder.memory(source)
        states = self._decoder(batch, trace, memory)
        indices = torch.arange(len(request.prompt) - 1, len(text), device=self._device)
        return self._logits(states, replace(batch, token_indices=indices))

    @property
    def _decoder(self) -> Encoder:
        """Module that predicts the next token. `model.encoder` holds it in a decoder-only model."""
        return self.model.encoder

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _logits(self, states: Tensor, batch: Batch) -> Tensor:
        logits: Tensor = self.model.heads["lm"](states, batch)
        # If the embedding matrix is padded, it has more rows than the vocabulary has tokens.
        return logits[:, : self.vocab].float()


class DecoderStepper(Stepper):
    """Encoder-decoder model (Marian, BART, T5) that is run step by step to generate text.

    `length` is the maximum number of source tokens. By default, at most 2n + 20 tokens are
    generated for a source of n tokens.
    """

    def max_new_tokens(self, request: Request, max_tokens: int | None = None) -> int:
        assert request.source is not None
        if len(request.source) > self.length:
            raise DataError(
                f"the source has {len(request.source):,} tokens, but the model supports at most "
                f"{self.length:,}; shorten the source"
            )
        default = 2 * len(request.source) + 20
        positions = self._decoder.config.max_positions
        return _max_new_tokens(positions, request, max_tokens or default)

    @torch.inference_mode()
    def start(self, requests: Sequence[Request]) -> tuple[StepperState, Tensor]:
        texts = [request.source for request in requests if request.source is not None]
        sources, order = _pack(texts, self._device)
        batch, back = _pack([request.prompt for request in requests], self._device)
        batch = replace(batch, source=sources, source_order=order[back.argsort()])
        memory = self.model.encoder.memory(sources)
        states, state = _begin(self._decoder, batch, memory)
        state.keep(back)
        if isinstance(state, Cache):
            decoder = cast(Transformer, self._decoder)
            blocks = (decoder.blocks[depth] for depth in decoder.config.depths)
            projections = [cast(CrossAttention, x.cross).keys_values(memory) for x in blocks]
            state.sources = Sources.of(projections, sources.layout, order)
        return state, self._logits(states, batch)[back]

    @property
    def _decoder(self) -> Encoder:
        assert self.model.decoder is not None
        return self.model.decoder


def stepper_of(model: Model, length: int | None = None, *, vocab: int | None = None) -> Stepper:
    """Create the stepper that a model requires: for a decoder-only or an encoder-decoder model."""
    kind = Stepper if model.decoder is None else DecoderStepper
    return kind(model, length, vocab=vocab)


def _begin(decoder: Encoder, batch: Batch, memory: Any = None) -> tuple[Tensor, StepperState]:
    """Compute the hidden states of the prompts, and the state that the next step requires."""
    if isinstance(decoder, Stateful):
        return decoder.begin(batch, memory)
    trace = Trace(weights=False, projections=True)
    states = decoder(batch, trace, memory)
    return states, Cache.of(trace.keys, trace.values, batch.layout)


def _pack(texts: Sequence[NDArray[np.int64]], device: torch.device) -> tuple[Batch, Tensor]:
    """Pack texts into a batch in order of length. Outputs are computed for the last token of each.

    Returns:
        The batch, and the index of each text in the batch.
    """
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    layout = Packed.of([len(texts[index]) for index in order])
    ids = torch.from_numpy(np.concatenate([texts[index] for index in order]))
    batch = Batch(ids, torch.zeros_like(ids), layout, token_indices=layout.cu_seqlens[1:] - 1)
    return batch.to(device), torch.tensor(order).argsort().to(device)


def _max_new_tokens(length: int, request: Request, max_tokens: int | None) -> int:
    if len(request.prompt) >= length:
        raise DataError(
            f"the prompt has {len(request.prompt):,} tokens, which leaves no space for new tokens "
            f"within the maximum length of {length:,}; shorten the prompt"
        )
    most = length - len(request.prompt)
    return most if max_tokens is None else min(most, max_tokens)
