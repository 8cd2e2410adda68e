"""Auxiliary language modeling loss for fine-tuning. Radford et al. 2018, section 3.2."""

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

TaskLoss = Callable[[Tensor, Batch, Totals, nn.Module], Loss]
"""Function that computes a task's loss from the outputs of its head."""


class WithAuxiliaryLM:
    """Objective that adds a weighted loss of next-token prediction to the loss of a task.

    This is equation 5 of Radford et al. 2018, in which the weight is λ. The head `lm` predicts the
    next token after each token, including special tokens. The added loss is the mean cross-entropy
    over all tokens of an optimizer step that have a next token.

    Args:
        task_loss: Function that computes the loss of the task.
        head: Name of the task's head.
        weight: Weight of the next-token loss.
    """

    def __init__(self, task_loss: TaskLoss, *, head: str, weight: float) -> None:
        self.task_loss, self.head, self.weight = task_loss, head, weight

    def __call__(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        states, head = model.states(batch), model.heads[self.head]
        task = self.task_loss(head(states, batch).float(), batch, totals, head)
        lm_loss = next_token_loss(model, states, batch) / max(totals.tokens - totals.sequences, 1)
        lm_loss = self.weight * lm_loss
        return Loss(task.total + lm_loss, {**task.parts, "lm": lm_loss.detach()}, task.correct)


def next_token_loss(model: Model, states: Tensor, batch: Batch) -> Tensor:
    """Compute the summed cross-entropy of next-token prediction. Shapes: states (N, D) -> ()."""
    head, layout = cast(LanguageModelHead, model.heads["lm"]), batch.layout
    has_next = torch.ones_like(batch.ids, dtype=torch.bool)
    has_next[layout.first + layout.counts - 1] = False
    positions = has_next.nonzero().squeeze(1)
    features = head.features(states.index_select(0, positions), batch)
    return linear_cross_entropy(features, head.weight, head.bias, batch.ids[positions + 1])[0]
