"""What an objective gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from bertkit.batch import Batch
from bertkit.models.model import Model


class Totals(dict[str, int]):
    """How many targets each head has in a whole optimizer step, and of what the step is made."""

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
    """A batch's share of a step's loss.

    `total` is what is differentiated; `parts` the share of each head, detached; `correct` how
    many targets each head got right. Shares of all batches of a step add up to its mean loss, so
    only dropout's draws depend on how a step is cut.
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    correct: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """What a model learns from: its loss on a batch of a step with these totals."""

    def __call__(self, model: Model, batch: Batch, totals: Totals) -> Loss: ...


def totals(batches: Sequence[Batch]) -> Totals:
    """Those of the batches of a step."""
    return Totals(batches)
