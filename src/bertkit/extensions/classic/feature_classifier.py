"""A BiLSTM tagger on stored states of words, and its training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.console import say
from bertkit.data.shuffling import Permutation
from bertkit.engine.engine import MAX_BATCH_TOKENS, Engine
from bertkit.extensions.classic.recurrent import BiLSTM, ScalarMix
from bertkit.metrics import worth
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.dropout import Dropout
from bertkit.pipelines.frozen_words import Frozen, places_of
from bertkit.progress import progress
from bertkit.tasks.task import Feature, Task, by_example, group
from bertkit.training.dev_loss import dev_loss
from bertkit.training.loop import steps
from bertkit.training.master_weights import Masters

How = Literal["one", "sum", "mix", "concat"]
"""How layers are combined: a single layer, their sum, a weighted sum, or their concatenation."""


def compute_states(frozen: Frozen, features: Sequence[Feature], layers: Sequence[int]) -> Tensor:
    """Compute the states of layers at the positions of all features, in order, in fp16.

    The memory that they need is printed first. Shapes: (J, W, D).
    """
    starts = np.cumsum([0, *(len(places_of(feature)) for feature in features)])
    shape = len(layers), int(starts[-1]), frozen.hidden
    say(
        f"{shape[1]:,} words × {shape[0]} layers × {shape[2]}: "
        f"{2 * math.prod(shape) / 1e6:,.0f} MB of states"
    )
    states = torch.empty(shape, dtype=torch.float16)
    with progress() as bar:
        shown = bar.add_task("reading", total=len(features), note="")
        for place, rows in frozen.stream(features, layers):
            states[:, starts[place] : starts[place + 1]] = rows.half().transpose(0, 1)
            bar.update(shown, advance=1)
    return states


class Features(nn.Module):
    """A combination of stored states, and a BiLSTM over it; it replaces the encoder of a model.

    The ids of a batch are rows of `states`, of which the layers `rows` are used.
    Shapes: states (J, W, D); a batch of N words -> (N, 2 · width).
    """

    def __init__(
        self,
        states: Tensor,
        rows: Sequence[int],
        how: How,
        *,
        width: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.states, self.rows, self.how = states, list(rows), how
        inputs = states.shape[2] * (len(self.rows) if how == "concat" else 1)
        self.mix = ScalarMix(len(self.rows)) if how == "mix" else None
        self.dropout = Dropout(dropout)
        self.lstm = BiLSTM(inputs, width, layers=layers, dropout=dropout)

    def forward(self, batch: Batch) -> Tensor:
        states = torch.stack([self.states[row][batch.ids].float() for row in self.rows])
        if self.mix is not None:
            x = self.mix(states)
        else:
            x = states.transpose(0, 1).flatten(1) if self.how == "concat" else states.sum(0)
        out: Tensor = self.dropout(self.lstm(self.dropout(x), batch.layout.lengths))
        return out

    def mixture(self, layers: Sequence[int]) -> dict[str, float]:
        """Return the weights of a weighted sum of layers with these numbers, or nothing."""
        return {} if self.mix is None else self.mix.told(layers)


class WordHead(nn.Module):
    """Linear layer for each word of a batch. Shapes: (N, D) -> (P, L)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.out = nn.Linear(inputs, outputs)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        assert batch.token_indices is not None
        out: Tensor = self.out(states.index_select(0, batch.token_indices))
        return out


def fit(
    states: Features,
    head: WordHead,
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
    """Train a tagger with Adam and return the dev scores of its best epoch, with its weights.

    Args:
        states: The features.
        head: The head of the task.
        task: The task.
        train: Features of train.
        dev: Features of dev.
        examples: Examples of dev.
        name: Label of the progress bar.
        epochs: Number of epochs.
        batch_size: Examples per step.
        learning_rate: Learning rate.
        seed: Seed of the order of examples and of dropout.
    """
    # A task needs no more of an encoder than to be called with a batch.
    model = Model(cast(Transformer, states), {task.head: head})
    per_epoch = math.ceil(len(train) / batch_size)
    masters = Masters(model, torch.float32)
    optimizer = torch.optim.Adam(masters.weights.values(), lr=learning_rate)
    groups = (
        [task.batch([train[row] for row in rows])]
        for epoch in range(epochs)
        for order in [Permutation(len(train), seed, epoch)(np.arange(len(train)))]
        for rows in np.array_split(order, np.arange(1, per_epoch) * batch_size)
    )
    best: dict[str, float] = {}
    best_rank = (-math.inf, -math.inf)
    weights: dict[str, Tensor] = {}
    with progress() as bar:
        shown = bar.add_task(name, total=epochs, note="")
        for step in steps(
            masters, task.loss, groups, optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=seed
        ):
            if step.number % per_epoch == 0:
                scores = _score(model.eval(), task, dev, examples)
                loss = dev_loss(task, model, dev, MAX_BATCH_TOKENS)
                rank = worth(scores[task.metric]), -loss
                if not best or rank > best_rank:
                    best, best_rank = scores, rank
                    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
                bar.update(shown, advance=1, note=f"{task.metric} {best[task.metric]:.3f}")
    model.load_state_dict(weights)
    return best


def _score(
    model: Model, task: Task[Any, Any], features: Sequence[Feature], examples: Sequence[Any]
) -> dict[str, float]:
    """Score a model in evaluation mode."""
    outputs = by_example(
        examples, group(features), task.run(Engine(model, precision=None), features)
    )
    return task.score(task.answers(outputs, model.heads[task.head]), examples)
