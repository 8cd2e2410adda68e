"""Contrastive losses, logistic regression, and steps that exceed the memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bertkit.batch import Batch, Packed, split_by_tokens
from bertkit.models.heads import VectorClassifier
from bertkit.models.model import Model
from bertkit.training.distributed import share_of, sum_over_ranks

MAX_BATCH_TOKENS = 8192
"""Number of tokens whose activations are in memory during training.

The forward pass of larger steps is computed twice.
"""

INVERSE_PENALTY = 10.0
"""Inverse weight of the L2 penalty of `fit_logistic`, for vectors of mean length 1."""


def contrastive_loss(vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Compute the mean squared error of cosines: target 1 within a label, 0 between labels.

    The two means have equal weight. All pairs in a step are used, whereas the paper uses only
    sampled pairs: a step of 32 pairs then has two thousand, at the same cost. A pair of the same
    row with itself is excluded.

    Args:
        vectors: One embedding per text.
        labels: Label of each text.
        rows: Index of the example of each text.

    Returns:
        The loss, a scalar.

    Shapes:
        vectors: (S, D).
        labels, rows: (S,).
    """
    unit = F.normalize(vectors, dim=-1)
    cosines, has_same_label = unit @ unit.T, labels[:, None] == labels
    is_same_pair = has_same_label & (rows[:, None] != rows)
    losses = ((1 - cosines).square()[is_same_pair], cosines.square()[~has_same_label])
    return sum((loss.sum() / max(len(loss), 1) for loss in losses), cosines.new_zeros(())) / 2


def fit_logistic(
    vectors: Tensor, targets: Tensor, *, labels: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression with an L2 penalty, like scikit-learn's.

    Vectors are divided by their mean length first.

    Args:
        vectors: One vector per example.
        targets: Label index of each example.
        labels: Number of labels.
        weights: Weight of each label; all are 1 by default.

    Returns:
        Weight and bias.

    Shapes:
        vectors: (N, D).
        targets: (N,).
        weights: (L,).
        returns: (L, D) and (L,).
    """
    length = vectors.double().norm(dim=-1).mean().clamp(min=1e-12)
    unit = vectors.double() / length
    weight = torch.zeros(labels, vectors.shape[1], dtype=torch.double, requires_grad=True)
    bias = torch.zeros(labels, dtype=torch.double, requires_grad=True)
    scales = None if weights is None else weights.double()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        nats = F.cross_entropy(F.linear(unit, weight, bias), targets, scales, reduction="sum")
        total = nats + weight.square().sum() / (2 * INVERSE_PENALTY)
        total.backward()
        return total

    optimizer.step(loss)
    return (weight / length).detach(), bias.detach()


def compute_in_parts(
    compute: Callable[[Model, Batch], Tensor], model: Model, batch: Batch
) -> Tensor:
    """Compute the outputs of a batch whose sequences are compared with each other.

    A training batch of more than `MAX_BATCH_TOKENS` tokens is computed in parts, and again for the
    gradient. The step size is then not limited by memory (Gao et al. 2021, GradCache). Each process
    computes a share of a shared batch, and receives the outputs of the others.

    Args:
        compute: Function that computes the outputs of a model and a batch.
        model: The model.
        batch: All sequences of the step.

    Returns:
        The concatenated outputs of `compute`.

    Shapes:
        Returns (S, D).
    """
    if not model.training:
        return compute(model, batch)
    if not batch.shared:
        return _compute(compute, model, batch)
    share, count = share_of(batch.layout.lengths), len(batch.layout.lengths)
    rows = _compute(compute, model, _select(batch, share))
    return sum_over_ranks(F.pad(rows, (0, 0, share.start, count - share.stop)))


def _compute(compute: Callable[[Model, Batch], Tensor], model: Model, batch: Batch) -> Tensor:
    """Compute the outputs of a batch, in parts of at most `MAX_BATCH_TOKENS` tokens."""
    parts = [
        _select(batch, part) for part in split_by_tokens(batch.layout.lengths, MAX_BATCH_TOKENS)
    ]
    if len(parts) == 1:
        return compute(model, batch)
    return torch.cat([checkpoint(compute, model, part, use_reentrant=False) for part in parts])


def _select(batch: Batch, sequences: slice) -> Batch:
    """Return a batch of consecutive sequences, without targets."""
    layout = batch.layout
    start, end = (int(layout.cu_seqlens[i]) for i in (sequences.start, sequences.stop))
    part_layout = Packed.of(layout.lengths[sequences]).to(layout.sequence_ids.device)
    return Batch(batch.ids[start:end], batch.types[start:end], part_layout)


def compute_embeddings(model: Model, batch: Batch) -> Tensor:
    """Return the text embeddings that the classification head takes as input. Shapes: (S, D)."""
    (head,) = (head for head in model.heads.values() if isinstance(head, VectorClassifier))
    return head.vectors(model.states(batch), batch).float()
