"""Training a small network on features that stay as they are; no files, no checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bertkit.data.order import Permutation
from bertkit.engine.engine import Engine
from bertkit.models.model import Model
from bertkit.tasks.task import Feature, Task
from bertkit.training.loop import steps
from bertkit.training.masters import Masters

BUDGET_TOKENS = 4096
"""Words that go through the network at a time when it is scored."""


def fit(
    model: Model,
    task: Task[Any, Any],
    train: Sequence[Feature],
    dev: Sequence[Feature],
    examples: Sequence[Any],
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> Iterator[dict[str, float]]:
    """Train a small model with Adam, and give its scores on dev after each epoch.

    `examples` are those of dev. Order and dropout depend on the seed alone.
    """
    per_epoch = math.ceil(len(train) / batch_size)
    masters = Masters(model, torch.float32)
    learned = [weight for weight in masters.weights.values() if weight.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=learning_rate)
    groups = (
        [task.batch([train[row] for row in rows])]
        for epoch in range(epochs)
        for order in [Permutation(len(train), seed, epoch)(np.arange(len(train)))]
        for rows in np.array_split(order, np.arange(1, per_epoch) * batch_size)
    )
    for step in steps(masters, task.loss, groups, optimizer, lambda _: 1.0, clip=1.0, seed=seed):
        if step.number % per_epoch == 0:
            model.eval()
            engine = Engine(model, precision=None, budget_tokens=BUDGET_TOKENS)
            outputs = task.run(engine, dev)
            yield task.score(task.answers(outputs, dev, examples, model.heads[task.head]), examples)
