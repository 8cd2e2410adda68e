"""Tests that a tiny model overfits eight rows deterministically."""

from __future__ import annotations

import pytest
import torch
from tests.factories import tiny_model

from bertkit.data.collate import collate
from bertkit.data.samples import Sample
from bertkit.objectives.pretrain import pretrain
from bertkit.training.loop import evaluate, steps
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import adamw


def rows() -> list[Sample]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for row in range(8):
        ids = torch.randint(5, 40, (12,), generator=generator).numpy()
        positions = torch.tensor([2, 7]).numpy()
        labels = torch.randint(5, 40, (2,), generator=generator).numpy()
        types = (torch.arange(12) > 5).long().numpy()
        found.append(Sample(ids, types, positions, labels, row % 2))
    return found


def overfit(head: str) -> tuple[float, dict[str, float], torch.Tensor]:
    torch.set_num_threads(1)  # tiny models do not benefit from a second thread
    torch.manual_seed(0)
    model = tiny_model(40, "mlm", head, hidden=32, intermediate=64, dropout=0.0)
    masters = Masters(model, torch.float32)
    optimizer = adamw(masters.weights, learning_rate=5e-3, weight_decay=0.0)
    batches = collate(rows(), head=head, max_batch_tokens=1024)
    run = steps(
        masters, pretrain, [batches] * 100, optimizer, lambda _: 1.0, max_grad_norm=1.0, seed=0
    )
    losses = [step.loss for step in run]
    _, accuracy = evaluate(model, pretrain, batches)
    assert losses[0] > 3.0
    return losses[-1], accuracy, model.encoder.embedding.tokens.weight.detach()


@pytest.mark.parametrize("head", ["nsp", "sop"])
def test_tiny_model_overfits_eight_rows_deterministically(head: str) -> None:
    loss, accuracy, weights = overfit(head)
    assert loss < 0.05
    assert accuracy == {"mlm": 1.0, head: 1.0}
    again, _, same = overfit(head)
    assert again == loss
    assert torch.equal(weights, same)
