"""The contrastive loss and the logistic regression head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bertkit.objectives.contrastive import INVERSE_PENALTY, contrastive_loss, fit_logistic


def test_loss_matches_all_pairs_of_step() -> None:
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
    expected = (torch.stack(near).mean() + torch.stack(far).mean()) / 2
    torch.testing.assert_close(contrastive_loss(vectors, labels, rows), expected)


def test_loss_supports_step_with_one_type_of_pair() -> None:
    vectors = torch.randn(2, 4)
    cosine = F.cosine_similarity(vectors[0], vectors[1], dim=0)
    indices = torch.arange(2)
    found = contrastive_loss(vectors, torch.tensor([0, 0]), indices)
    torch.testing.assert_close(found, (1 - cosine) ** 2 / 2)
    torch.testing.assert_close(contrastive_loss(vectors, indices, indices), cosine**2 / 2)


@pytest.mark.parametrize("labels", [2, 3])
def test_logistic_head_matches_scikit_learn(labels: int) -> None:
    peer = pytest.importorskip("sklearn.linear_model")
    torch.manual_seed(0)
    vectors, targets = 3 * torch.randn(30, 6), torch.arange(30) % labels
    weights = torch.arange(1.0, labels + 1)
    unit = vectors.double() / vectors.double().norm(dim=1).mean()
    for label_weights, class_weight in ((None, None), (weights, dict(enumerate(weights.tolist())))):
        weight, bias = fit_logistic(vectors, targets, labels=labels, weights=label_weights)
        actual = torch.softmax(F.linear(vectors.double(), weight, bias), -1)
        # with two labels, scikit-learn has one row of weights and half of the penalty
        strength = INVERSE_PENALTY * (2 if labels == 2 else 1)
        fitted = peer.LogisticRegression(
            C=strength, tol=1e-9, max_iter=5000, class_weight=class_weight
        )
        expected = fitted.fit(unit.numpy(), targets.numpy()).predict_proba(unit.numpy())
        np.testing.assert_allclose(actual.numpy(), expected, atol=1e-5)
