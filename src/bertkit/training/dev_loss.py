"""The loss on dev, which decides between models that have equal scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bertkit.batch import split_by_tokens
from bertkit.models.model import Model
from bertkit.objectives.loss import totals
from bertkit.tasks.capabilities import NeedsReference
from bertkit.tasks.task import Feature, Task, group_for_training, make_batch

EXAMPLES_PER_BATCH = 32
"""Number of examples whose texts are compared with each other, in tasks that compare texts."""


@torch.no_grad()
def dev_loss(
    task: Task[Any, Any], model: Model, features: Sequence[Feature], max_batch_tokens: int
) -> float:
    """Compute the mean loss of features in evaluation mode.

    Args:
        task: The task.
        model: A model with the head of the task. Its mode (training or evaluation) is restored.
        features: Features of dev, with targets.
        max_batch_tokens: Maximum number of tokens per batch.

    Returns:
        The loss. It is infinity if it is not finite, or cannot be computed because the features
        have no targets or the task needs outputs of the initial model.
    """
    if not features or any(f.target is None for f in features) or isinstance(task, NeedsReference):
        return math.inf
    units = group_for_training(task, features)
    units = sorted(filter(None, units), key=lambda unit: sum(f.tokens for f in unit))
    parts = [slice(i, i + EXAMPLES_PER_BATCH) for i in range(0, len(units), EXAMPLES_PER_BATCH)]
    if task.batching != "step":
        parts = split_by_tokens([sum(f.tokens for f in unit) for unit in units], max_batch_tokens)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    loss, count = 0.0, 0
    for part in parts:
        batch = make_batch(task, [feature for unit in units[part] for feature in unit]).to(device)
        whole = totals([batch])
        loss += task.loss(model, batch, whole).total.item() * whole[task.head]
        count += whole[task.head]
    model.train(was_training)
    return loss / count if math.isfinite(loss) else math.inf
