"""Learning by comparison: a loss of pairs, a head fitted to vectors, steps larger than memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bertkit.batch import Batch, Packed, split_by_tokens
from bertkit.models.heads import VectorClassifier
from bertkit.models.model import Model

MAX_BATCH_TOKENS = 8192
"""Tokens whose states are in memory while a step learns; the rest is computed twice."""

INVERSE_PENALTY = 10.0
"""The inverse of the weight of the head's L2 penalty, on vectors of length 1."""


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
        total = wrong + weight.square().sum() / (2 * INVERSE_PENALTY)
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
    for part in split_by_tokens(layout.lengths, MAX_BATCH_TOKENS):
        start, end = (int(layout.cu_seqlens[i]) for i in (part.start, part.stop))
        own = Packed.of(layout.lengths[part]).to(layout.sequence_ids.device)
        parts.append(Batch(batch.ids[start:end], batch.types[start:end], own))
    return parts


def vectors_of(model: Model, batch: Batch) -> Tensor:
    """Each text's, which the head reads. Shapes: (S, D)."""
    (head,) = (head for head in model.heads.values() if isinstance(head, VectorClassifier))
    return head.vectors(model.states(batch), batch).float()
