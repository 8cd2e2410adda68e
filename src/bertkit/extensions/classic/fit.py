"""Training a small network on features that stay as they are; no files, no checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.data.shuffling import Permutation
from bertkit.engine.engine import Engine
from bertkit.metrics import worth
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.progress import progress
from bertkit.tasks.task import Feature, Task, by_example, group
from bertkit.training.dev_loss import dev_loss
from bertkit.training.loop import steps
from bertkit.training.master_weights import Masters

MAX_BATCH_TOKENS = 4096
"""Words that go through the network at a time when it is scored."""


def fit(
    states: nn.Module,
    head: nn.Module,
    task: Task[Any, Any],
    train: Sequence[Feature],
    dev: Sequence[Feature],
    examples: Sequence[Any],
    *,
    name: str,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> dict[str, float]:
    """Train `states` under a task's head with Adam; returns the dev scores of its best epoch, whose
    weights both then have.

    `states` stands where a model has its encoder; `examples` are those of dev; `name` stands beside
    a bar. Order and dropout depend on the seed alone.
    """
    # a task asks no more of an encoder than to be called with a batch
    model = Model(cast(Transformer, states), {task.head: head})
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
    best: dict[str, float] = {}
    best_rank = (-math.inf, -math.inf)
    kept: dict[str, Tensor] = {}
    with progress() as bar:
        shown = bar.add_task(name, total=epochs, note="")
        for step in steps(
            masters, task.loss, groups, optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=seed
        ):
            if step.number % per_epoch == 0:
                scores = judge(states, head, task, dev, examples)
                rank = (
                    worth(scores[task.metric]),
                    -dev_loss(task, model, dev, MAX_BATCH_TOKENS),
                )
                if not best or rank > best_rank:
                    best, best_rank = scores, rank
                    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
                bar.update(shown, advance=1, note=f"{task.metric} {best[task.metric]:.3f}")
    model.load_state_dict(kept)
    return best


def judge(
    states: nn.Module,
    head: nn.Module,
    task: Task[Any, Any],
    features: Sequence[Feature],
    examples: Sequence[Any],
) -> dict[str, float]:
    """The scores of what `fit` trains on these examples, whose features are given."""
    model = Model(cast(Transformer, states), {task.head: head}).eval()
    engine = Engine(model, precision=None, max_batch_tokens=MAX_BATCH_TOKENS)
    outputs = by_example(examples, group(features), task.run(engine, features))
    return task.score(task.answers(outputs, head), examples)
