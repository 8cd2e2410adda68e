"""Pairs of a step, and the head fitted to vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bertkit.objectives.contrastive import INVERSE_PENALTY, contrastive_loss, fit_logistic


def test_the_loss_is_that_of_all_pairs_of_a_step() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(5, 4)
    labels, rows = torch.tensor([0, 0, 1, 1, 0]), torch.tensor([0, 1, 2, 3, 0])
    near, far = [], []
    for a in range(5):
        for b in range(a):
            cosine = F.cosine_similarity(vectors[a], vectors[b], dim=0)
            if labels[a] != labels[b]:
                far.append(cosine**2)
            elif rows[a] != rows[b]:  # the last row is the first
                near.append((1 - cosine) ** 2)
    assert (len(near), len(far)) == (3, 6)
    wanted = (torch.stack(near).mean() + torch.stack(far).mean()) / 2
    torch.testing.assert_close(contrastive_loss(vectors, labels, rows), wanted)


def test_a_step_with_one_kind_of_pair_is_learned_from() -> None:
    vectors = torch.randn(2, 4)
    cosine = F.cosine_similarity(vectors[0], vectors[1], dim=0)
    place = torch.arange(2)
    found = contrastive_loss(vectors, torch.tensor([0, 0]), place)
    torch.testing.assert_close(found, (1 - cosine) ** 2 / 2)
    torch.testing.assert_close(contrastive_loss(vectors, place, place), cosine**2 / 2)


@pytest.mark.parametrize("labels", [2, 3])
def test_the_head_is_scikit_learns(labels: int) -> None:
    peer = pytest.importorskip("sklearn.linear_model")
    torch.manual_seed(0)
    vectors, targets = 3 * torch.randn(30, 6), torch.arange(30) % labels
    weights = torch.arange(1.0, labels + 1)
    unit = vectors.double() / vectors.double().norm(dim=1).mean()
    for given_, named in ((None, None), (weights, dict(enumerate(weights.tolist())))):
        weight, bias = fit_logistic(vectors, targets, labels=labels, weights=given_)
        ours = torch.softmax(F.linear(vectors.double(), weight, bias), -1)
        # of two labels scikit-learn has one row of weights, which pays half of our penalty
        strength = INVERSE_PENALTY * (2 if labels == 2 else 1)
        fitted = peer.LogisticRegression(C=strength, tol=1e-9, max_iter=5000, class_weight=named)
        theirs = fitted.fit(unit.numpy(), targets.numpy()).predict_proba(unit.numpy())
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)
