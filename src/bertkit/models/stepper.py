"""What a model that writes can do: read a prompt, then one token of each row after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch, Packed
from bertkit.models.model import Model
from bertkit.nn.attention import Trace
from bertkit.nn.cache import Cache


@dataclass(frozen=True)
class Request:
    """What is gone on from. Shapes: prompt (T,), one token at least."""

    prompt: NDArray[np.int64]
    number: int = 0
    """Tells several texts from one prompt apart."""


class State(Protocol):
    """What a model remembers of the rows that it writes."""

    def advance(self, counts: Tensor) -> None:
        """Of the tokens of the last step these many of each row stay. Shapes: (R,)."""
        ...

    def keep(self, rows: Tensor) -> None:
        """These rows alone, in this order; one may come twice."""
        ...


class Stepper(Protocol):
    """A model that writes, one token after the other."""

    length: int
    """Tokens of a row at most, with its prompt."""

    def start(self, requests: Sequence[Request]) -> tuple[State, Tensor]:
        """Read the prompts; the logits of what comes next. Shapes: R requests -> (R, V)."""
        ...

    def step(self, state: State, ids: Tensor) -> Tensor:
        """Read C more tokens of each row, and the logits of what follows each; `state.advance`
        says how many stay. Shapes: (R, C) -> (R, C, V)."""
        ...

    def join(self, state: State, other: State) -> None:
        """The rows of another state behind those of this one."""
        ...


class CausalStepper:
    """A stack whose tokens see those before them alone, with the head `lm` (GPT).

    `vocab` is how many of its pieces may be written, all by default.
    """

    def __init__(
        self, model: Model, length: int | None = None, *, vocab: int | None = None
    ) -> None:
        self.model, self.vocab = model, vocab or model.config.vocab
        self.length = min(length or model.config.max_positions, model.config.max_positions)

    @torch.inference_mode()
    def start(self, requests: Sequence[Request]) -> tuple[Cache, Tensor]:
        order = sorted(range(len(requests)), key=lambda place: len(requests[place].prompt))
        prompts = [torch.from_numpy(requests[place].prompt) for place in order]
        layout = Packed.of([len(prompt) for prompt in prompts])
        ids = torch.cat(prompts)
        batch = Batch(ids, torch.zeros_like(ids), layout, token_indices=layout.cu_seqlens[1:] - 1)
        batch, trace = batch.to(self._device), Trace(weights=False, projections=True)
        logits = self._logits(self.model.encoder(batch, trace), batch)
        cache = Cache.of(trace.keys, trace.values, batch.layout)
        back = torch.tensor(order).argsort().to(self._device)
        cache.keep(back)
        return cache, logits[back]

    @torch.inference_mode()
    def step(self, state: State, ids: Tensor) -> Tensor:
        assert isinstance(state, Cache)
        step, flat = state.append(ids.shape[1]), ids.flatten()
        batch = Batch(flat, torch.zeros_like(flat), cast(Packed, step.layout))
        logits = self._logits(self.model.encoder(batch, step=step), batch)
        return logits.view(*ids.shape, -1)

    def join(self, state: State, other: State) -> None:
        assert isinstance(state, Cache)
        assert isinstance(other, Cache)
        state.join(other)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _logits(self, states: Tensor, batch: Batch) -> Tensor:
        logits: Tensor = self.model.heads["lm"](states, batch)
        return logits[:, : self.vocab].float()  # a padded vocabulary has more rows than tokens
