"""Labels from few rows: vectors are learned from pairs of texts, then a head on them (SetFit).

Texts of one label are to point the same way, those of two labels to stand at right angles; once an
epoch a logistic regression is fitted to the vectors of all rows. Source: Tunstall et al. 2022,
"Efficient Few-Shot Learning Without Prompts", section 3.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from bertkit.console import say
from bertkit.data.shuffling import Purpose, generator
from bertkit.errors import ConfigError, DataError
from bertkit.tasks.capabilities import UsesPooling
from bertkit.tasks.task import A, E, Feature, Task, group_for_training

if TYPE_CHECKING:  # torch, which an exported model needs not
    from torch import Tensor, nn

    from bertkit.batch import Batch
    from bertkit.models.heads import VectorClassifier
    from bertkit.models.model import Model
    from bertkit.models.transformer import Transformer
    from bertkit.nn.pooling import Pooling

HEAD = "vector"

ROUNDS, MOST_PAIRS = 7, 1000
"""In how many pairs of either kind a row comes first in an epoch (Tunstall et al. 2022, section
4.2), and from how many pairs on there are fewer such rounds, but for one."""


class Contrastive(Task[E, A], UsesPooling):
    """Task with labels and the option `contrastive`, which trains embeddings of pairs of texts."""

    pooling: Pooling | None = None
    """Pooling of the initial model."""
    weights: Tensor | None = None
    """(L,), of the labels in the loss."""

    @property
    def head(self) -> str:
        return HEAD if self.options.contrastive else self.name

    def with_pooling(self, pooling: Pooling | None) -> Self:
        task = copy.copy(self)
        task.pooling = pooling
        return task

    def build_head(self, encoder: Transformer) -> nn.Module:
        """Raises: ConfigError for a model that makes no vectors."""
        if not self.options.contrastive:
            return super().build_head(encoder)
        if encoder.config.is_causal:
            raise ConfigError(
                "contrastive: learns vectors of whole texts, and a causal model reads no text as a "
                "whole; take a model of sentence vectors, or leave it out"
            )
        from bertkit.models import model as models

        return models.head(HEAD, encoder, self.labels, self.pooling)

    def sample_pairs(self, features: Sequence[Feature], seed: int) -> list[list[Feature]]:
        """Sample pairs of features for training; the seed determines them."""
        pairs = draw_pairs(np.array([feature.target for feature in features]), seed)
        say(f"contrastive: {len(pairs):,} pairs of rows an epoch, half of them of one label")
        return [[features[first], features[second]] for first, second in pairs.tolist()]

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """While pairs are learned from, each sequence's vector. Shapes: (S, L), or (S, D)."""
        if self.options.contrastive and model.training:
            from bertkit.objectives.contrastive import of_step, vectors_of

            return of_step(vectors_of, model, batch)
        return super().outputs(model, batch)

    def fit_head(self, model: Model, features: Sequence[Feature], max_batch_tokens: int) -> None:
        """Fit the linear layer to the embeddings of all training examples."""
        if not self.options.contrastive:
            return
        import torch

        from bertkit.engine.engine import Engine
        from bertkit.objectives.contrastive import fit_logistic, vectors_of

        head = cast("VectorClassifier", model.heads[HEAD])
        engine = Engine(model, max_batch_tokens=max_batch_tokens)
        vectors = engine.run([feature.encoding for feature in features], vectors_of)
        weight, bias = fit_logistic(
            torch.from_numpy(np.stack(vectors)).reshape(len(features), -1),
            torch.tensor([feature.target for feature in features]),
            labels=len(self.labels),
            weights=self.weights,
        )
        with torch.no_grad():
            head.out.weight.copy_(weight)
            head.out.bias.copy_(bias)


def training_units(
    task: Task[Any, Any], features: Sequence[Feature], seed: int
) -> list[list[Feature]]:
    """Return lists of features that must be in one training batch; contrastive ones are sampled."""
    if isinstance(task, Contrastive) and task.options.contrastive:
        return task.sample_pairs(features, seed)
    return group_for_training(task, features)


def check_rows(counts: Mapping[str, int], where: str) -> None:
    """Raises: DataError for a label with too few rows for a pair."""
    for label, count in counts.items():
        if count < 2:
            raise DataError(
                f"{where}: label {label!r} has one row, and contrastive pairs the rows of a label; "
                "add another, or leave contrastive out"
            )


def draw_pairs(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Pairs of rows: in each round every row with another of its label, and with one of another.

    Shapes: (N,) -> (pairs, 2), the kinds in turn. There are two labels or more, of two rows or
    more each. The same seed draws the same.
    """
    rows = len(labels)
    rounds = min(ROUNDS, max(MOST_PAIRS // (2 * rows), 1))
    random = generator(seed, 0, 0, Purpose.SAMPLE)
    order = np.argsort(labels, kind="stable")  # the rows of a label stand together
    ordered = labels[order]
    start = np.searchsorted(ordered, ordered)
    size = np.searchsorted(ordered, ordered, side="right") - start
    place = np.arange(rows)
    drawn = []
    for _ in range(rounds):
        same = start + (place - start + 1 + random.integers(size - 1)) % size
        other = (start + size + random.integers(rows - size)) % rows
        drawn += [np.stack([place, same], 1), np.stack([place, other], 1)]
    paired: NDArray[np.int64] = order[np.stack(drawn, 1).reshape(-1, 2)]
    return paired
