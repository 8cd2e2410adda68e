"""Few-shot classification with embeddings that are trained on pairs of texts (SetFit).

Training moves the cosine similarity of two texts toward 1 if their labels are equal, and toward 0
if they differ. After each epoch, a logistic regression is fitted to the embeddings of all examples.

Source: Tunstall et al. 2022, "Efficient Few-Shot Learning Without Prompts", section 3.
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

if TYPE_CHECKING:  # An exported model makes predictions without torch.
    from torch import Tensor, nn

    from bertkit.batch import Batch
    from bertkit.models.heads import VectorClassifier
    from bertkit.models.model import Model
    from bertkit.models.transformer import Transformer
    from bertkit.nn.pooling import Pooling

HEAD = "vector"

ROUNDS, MOST_PAIRS = 7, 1000
"""Maximum number of rounds per epoch, and maximum number of pairs per epoch.

In a round, each example is the first text of two pairs: one whose labels are equal, and one whose
labels differ. There are fewer rounds if they would sample more pairs than the maximum, but at least
one. Source: Tunstall et al. 2022, section 4.2.
"""


class Contrastive(Task[E, A], UsesPooling):
    """Task with the option `contrastive`, which trains embeddings on pairs of labeled texts."""

    pooling: Pooling | None = None
    """Pooling of the model before fine-tuning."""
    weights: Tensor | None = None
    """Weights of the labels in the loss. Shapes: (L,)."""

    @property
    def head(self) -> str:
        return HEAD if self.options.contrastive else self.name

    def with_pooling(self, pooling: Pooling | None) -> Self:
        task = copy.copy(self)
        task.pooling = pooling
        return task

    def build_head(self, encoder: Transformer) -> nn.Module:
        """Return a newly initialized head.

        Raises:
            ConfigError: If `contrastive` is set and the model is causal.
        """
        if not self.options.contrastive:
            return super().build_head(encoder)
        if encoder.config.is_causal:
            raise ConfigError(
                "contrastive: not supported by causal models; use an encoder, preferably a model "
                "of sentence embeddings"
            )
        from bertkit.models import model as models

        return models.head(HEAD, encoder, self.labels, self.pooling)

    def sample_pairs(self, features: Sequence[Feature], seed: int) -> list[list[Feature]]:
        """Sample pairs of features to train on. Equal seeds give equal pairs."""
        pairs = sample_pair_indices(np.array([feature.target for feature in features]), seed)
        say(f"contrastive: {len(pairs):,} pairs per epoch, half of them with equal labels")
        return [[features[first], features[second]] for first, second in pairs.tolist()]

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """Compute the embeddings in contrastive training, and otherwise the outputs of the head.

        Shapes:
            Returns (S, D) in contrastive training, and otherwise (S, L).
        """
        if self.options.contrastive and model.training:
            from bertkit.objectives.contrastive import compute_embeddings, compute_in_parts

            return compute_in_parts(compute_embeddings, model, batch)
        return super().outputs(model, batch)

    def fit_head(self, model: Model, features: Sequence[Feature], max_batch_tokens: int) -> None:
        """Fit the linear layer of the head to the embeddings of all training examples."""
        if not self.options.contrastive:
            return
        import torch

        from bertkit.engine.engine import Engine
        from bertkit.objectives.contrastive import compute_embeddings, fit_logistic

        head = cast("VectorClassifier", model.heads[HEAD])
        engine = Engine(model, max_batch_tokens=max_batch_tokens)
        vectors = engine.run([feature.encoding for feature in features], compute_embeddings)
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
    """Return lists of features that must be in the same training batch.

    In contrastive training, a list is a sampled pair.
    """
    if isinstance(task, Contrastive) and task.options.contrastive:
        return task.sample_pairs(features, seed)
    return group_for_training(task, features)


def check_rows(counts: Mapping[str, int], where: str) -> None:
    """Check that each label has at least two examples.

    Args:
        counts: Number of examples of each label.
        where: Location of the examples, for the message.

    Raises:
        DataError: If a label has one example.
    """
    for label, count in counts.items():
        if count < 2:
            raise DataError(
                f"{where}: label {label!r} has one row, but contrastive training requires two; add "
                "another row, or remove contrastive"
            )


def sample_pair_indices(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Sample pairs of examples. In each round, every example is the first text of two pairs.

    Args:
        labels: Label of each example. There must be at least two labels, and at least two examples
            of each label.
        seed: Random seed that determines the sample.

    Returns:
        Indices of the two examples of each pair. A pair with equal labels and a pair with different
        labels alternate.

    Shapes:
        labels: (N,); returns (pairs, 2).
    """
    rows = len(labels)
    rounds = min(ROUNDS, max(MOST_PAIRS // (2 * rows), 1))
    random = generator(seed, 0, 0, Purpose.SAMPLE)
    # Sort the examples by label, so that the examples of a label are contiguous.
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    start = np.searchsorted(ordered, ordered)
    size = np.searchsorted(ordered, ordered, side="right") - start
    index = np.arange(rows)
    pairs = []
    for _ in range(rounds):
        same = start + (index - start + 1 + random.integers(size - 1)) % size
        different = (start + size + random.integers(rows - size)) % rows
        pairs += [np.stack([index, same], 1), np.stack([index, different], 1)]
    sampled: NDArray[np.int64] = order[np.stack(pairs, 1).reshape(-1, 2)]
    return sampled
