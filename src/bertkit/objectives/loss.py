"""Interface of training objectives: their loss, and the counts that normalize it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from bertkit.batch import Batch
from bertkit.models.model import Model


class Totals(dict[str, int]):
    """Number of targets of each head in an optimizer step, and the size of the step.

    `tokens` and `sequences` are the numbers of tokens and of sequences. `positions` is the number
    of token indices, such as masked positions.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        names = dict.fromkeys(name for batch in batches for name in batch.targets)
        super().__init__(
            (name, sum(len(b.targets[name]) for b in batches if name in b.targets))
            for name in names
        )
        self.tokens = sum(batch.layout.total for batch in batches)
        self.sequences = sum(len(batch.layout.lengths) for batch in batches)
        self.positions = sum(len(b.token_indices) for b in batches if b.token_indices is not None)


@dataclass(frozen=True)
class Loss:
    """Contribution of one batch to the loss of an optimizer step.

    The contributions of all batches add up to the mean loss of the step. Apart from dropout, the
    sum does not depend on how the step is split into batches.

    Attributes:
        total: Loss to differentiate.
        parts: Contribution of each head or loss term, detached.
        correct: Number of targets that each head predicts correctly.
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    correct: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """Training objective, which computes the loss of one batch of an optimizer step."""

    def __call__(self, model: Model, batch: Batch, totals: Totals) -> Loss: ...


def totals(batches: Sequence[Batch]) -> Totals:
    """Return the totals of the batches of an optimizer step."""
    return Totals(batches)
