"""Labels from few rows: vectors are learned from pairs of texts, then a head on them (SetFit).

Texts of one label are to point the same way, those of two labels to stand at right angles; once an
epoch a logistic regression is fitted to the vectors of all rows. Source: Tunstall et al. 2022,
"Efficient Few-Shot Learning Without Prompts", section 3.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bertkit.batch import Batch, Packed, cut_by_tokens
from bertkit.console import say
from bertkit.data.order import Purpose, generator
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError, DataError
from bertkit.models import model as models
from bertkit.models.heads import VectorClassifier
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer
from bertkit.nn.pool import Pooling
from bertkit.tasks.task import A, E, Feature, Task

HEAD = "vector"

MAX_BATCH_TOKENS = 8192
"""Tokens whose states are in memory while a step learns; the rest is computed twice."""

ROUNDS, MOST_PAIRS = 7, 1000
"""In how many pairs of either kind a row comes first in an epoch (Tunstall et al. 2022, section
4.2), and from how many pairs on there are fewer such rounds, but for one."""

STRENGTH = 10.0
"""The inverse of the weight of the head's L2 penalty, on vectors of length 1."""


class Contrastive(Task[E, A]):
    """A task of labels whose option `contrastive` makes it learn in this way."""

    pooling: Pooling | None = None
    """That of the folder which it starts from."""
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
        if encoder.config.attention.causal:
            raise ConfigError(
                "contrastive: learns vectors of whole texts, and a causal model reads no text as a "
                "whole; take a model of sentence vectors, or leave it out"
            )
        return models.head(HEAD, encoder, self.labels, self.pooling)

    def units(self, features: Sequence[Feature], seed: int) -> list[list[Feature]]:
        """Pairs, where it learns from them."""
        if not self.options.contrastive:
            return super().units(features, seed)
        pairs = draw_pairs(np.array([feature.target for feature in features]), seed)
        say(f"contrastive: {len(pairs):,} pairs of rows an epoch, half of them of one label")
        return [[features[first], features[second]] for first, second in pairs.tolist()]

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """While pairs are learned from, each sequence's vector. Shapes: (S, L), or (S, D)."""
        if self.options.contrastive and model.training:
            return of_step(_vectors, model, batch)
        return super().outputs(model, batch)

    def fit_head(self, model: Model, features: Sequence[Feature], max_batch_tokens: int) -> None:
        """Fit the linear layer to the vectors of all rows."""
        if not self.options.contrastive:
            return
        head = cast(VectorClassifier, model.heads[HEAD])
        engine = Engine(model, max_batch_tokens=max_batch_tokens)
        vectors = engine.run([feature.encoding for feature in features], _vectors)
        weight, bias = fit_logistic(
            torch.from_numpy(np.stack(vectors)).reshape(len(features), -1),
            torch.tensor([feature.target for feature in features]),
            labels=len(self.labels),
            weights=self.weights,
        )
        with torch.no_grad():
            head.out.weight.copy_(weight)
            head.out.bias.copy_(bias)


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


def contrastive_loss(vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """The mean squared distance of cosines from 1 within labels and from 0 between them, half each.

    Of all pairs in a step, where the paper has those alone that were drawn: a step of 32 pairs
    then has two thousand, for the same work. The same row twice is no pair.
    Shapes: (S, D), (S,), (S,).
    """
    unit = F.normalize(vectors, dim=-1)
    cosines, same = unit @ unit.T, labels[:, None] == labels
    near = same & (rows[:, None] != rows)
    losses = ((1 - cosines).square()[near], cosines.square()[~same])
    return sum((loss.sum() / max(len(loss), 1) for loss in losses), cosines.new_zeros(())) / 2


def fit_logistic(
    vectors: Tensor, targets: Tensor, *, labels: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The weight and bias of a logistic regression with an L2 penalty, as scikit-learn's.

    Vectors are divided by their mean length first. Shapes: (N, D), (N,) -> (L, D), (L,).
    """
    length = vectors.double().norm(dim=-1).mean().clamp(min=1e-12)
    unit = vectors.double() / length
    weight = torch.zeros(labels, vectors.shape[1], dtype=torch.double, requires_grad=True)
    bias = torch.zeros(labels, dtype=torch.double, requires_grad=True)
    each = None if weights is None else weights.double()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        wrong = F.cross_entropy(F.linear(unit, weight, bias), targets, each, reduction="sum")
        total = wrong + weight.square().sum() / (2 * STRENGTH)
        total.backward()
        return total

    optimizer.step(loss)
    return (weight / length).detach(), bias.detach()


def of_step(ask: Callable[[Model, Batch], Tensor], model: Model, batch: Batch) -> Tensor:
    """What `ask` says of a batch whose sequences are compared with each other.

    What does not fit the budget while learning is computed part by part, and again for its
    gradient, so that a step can be as large as its loss wants (Gao et al. 2021, GradCache).
    """
    parts = _parts(batch) if model.training else [batch]
    if len(parts) == 1:
        return ask(model, batch)
    return torch.cat([checkpoint(ask, model, part, use_reentrant=False) for part in parts])


def _parts(batch: Batch) -> list[Batch]:
    """The batch's sequences in parts of at most the budget."""
    layout, parts = batch.layout, []
    for part in cut_by_tokens(layout.lengths, MAX_BATCH_TOKENS):
        start, end = (int(layout.cu_seqlens[i]) for i in (part.start, part.stop))
        own = Packed.of(layout.lengths[part]).to(layout.sequence_ids.device)
        parts.append(Batch(batch.ids[start:end], batch.types[start:end], own))
    return parts


def _vectors(model: Model, batch: Batch) -> Tensor:
    """Shapes: (S, D)."""
    head = cast(VectorClassifier, model.heads[HEAD])
    return head.vectors(model.states(batch), batch).float()
