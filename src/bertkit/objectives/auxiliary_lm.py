"""What a model was pretrained on, learned on beside a task. Radford et al. 2018, section 3.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.models.heads import LanguageModelHead
from bertkit.models.model import Model
from bertkit.nn.cross_entropy import linear_cross_entropy
from bertkit.objectives.loss import Loss, Totals

LossOf = Callable[[Tensor, Batch, Totals, nn.Module], Loss]
"""A task's loss from what its head says."""


class WithNextWords:
    """A task's loss, and `weight` times that of the next word: equation 5, whose λ it is.

    The second is the mean over all tokens of a step that have one behind them, those of the frame
    too; the head `lm` finds it.
    """

    def __init__(self, loss_of: LossOf, *, head: str, weight: float) -> None:
        self.loss_of, self.head, self.weight = loss_of, head, weight

    def __call__(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        states, head = model.states(batch), model.heads[self.head]
        task = self.loss_of(head(states, batch).float(), batch, totals, head)
        words = next_words(model, states, batch) / max(totals.tokens - totals.sequences, 1)
        words = self.weight * words
        return Loss(task.total + words, {**task.parts, "lm": words.detach()}, task.correct)


def next_words(model: Model, states: Tensor, batch: Batch) -> Tensor:
    """The summed cross-entropy of each token's successor. Shapes: states (N, D) -> a scalar."""
    head, layout = cast(LanguageModelHead, model.heads["lm"]), batch.layout
    followed = torch.ones_like(batch.ids, dtype=torch.bool)
    followed[layout.first + layout.counts - 1] = False
    places = followed.nonzero().squeeze(1)
    features = head.features(states.index_select(0, places), batch)
    return linear_cross_entropy(features, head.weight, head.bias, batch.ids[places + 1])[0]
