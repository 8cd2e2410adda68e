"""Contrastive loss, logistic regression, and training steps that are too large for the memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bertkit.batch import Batch, Packed, split_by_tokens
from bertkit.models.heads import VectorClassifier
from bertkit.models.model import Model
from bertkit.nn.all_reduce import share_of, sum_over_ranks

MAX_BATCH_TOKENS = 8192
"""Maximum number of tokens whose activations are in memory during training.

Larger steps are computed in parts, whose forward passes are computed twice.
"""

INVERSE_PENALTY = 10.0
"""Inverse of the weight of the L2 penalty in `fit_logistic`, for vectors of mean length 1."""


def contrastive_loss(vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Compute the mean squared error of the cosine similarities of all pairs of texts.

    The target is 1 for texts with the same label, and 0 for texts with different labels. The mean
    over pairs with the same label and the mean over pairs with different labels have equal weight.
    The paper uses only sampled pairs. Here, a step with the texts of 32 sampled pairs uses all two
    thousand pairs of these texts at the same cost. A text is not paired with a copy of itself.

    Args:
        vectors: One embedding per text.
        labels: Label of each text.
        rows: Index of the example that each text comes from.

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
    """Fit a logistic regression with an L2 penalty, as in scikit-learn.

    The vectors are first divided by their mean length.

    Args:
        vectors: One vector per example.
        targets: Label index of each example.
        labels: Number of labels.
        weights: Weight of each label. By default, all labels have weight 1.

    Returns:
        Weight matrix and bias.

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
    """Compute outputs for all sequences of a step, so that a loss can compare them with each other.

    A training batch of more than `MAX_BATCH_TOKENS` tokens is split into parts. The outputs of each
    part are computed again for the gradient, so that memory does not limit the number of sequences
    (Gao et al. 2021, GradCache). Of a shared batch, each process computes a share of the
    sequences, and receives the outputs of the other processes.

    Args:
        compute: Function that computes the outputs from a model and a batch.
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
    lengths = batch.layout.lengths
    share = share_of(lengths, dist.get_rank(), dist.get_world_size())
    rows = _compute(compute, model, _select(batch, share))
    return sum_over_ranks(F.pad(rows, (0, 0, share.start, len(lengths) - share.stop)))


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
    """Compute the text embeddings, which are the input of the classifier. Shapes: (S, D)."""
    (head,) = (head for head in model.heads.values() if isinstance(head, VectorClassifier))
    return head.vectors(model.states(batch), batch).float()
