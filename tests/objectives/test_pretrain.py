"""The pretraining loss is a mean over the step, however the step is split."""

import pytest
import torch
from tests.factories import tiny_model

from bertkit.batch import Batch, Packed
from bertkit.objectives.loss import totals
from bertkit.objectives.pretrain import pretrain


def batch(sizes: list[int], masked: list[int], pair: str = "nsp") -> Batch:
    rng = torch.Generator().manual_seed(sum(sizes))
    layout = Packed.of(sizes)
    ids = torch.randint(0, 40, (layout.total,), generator=rng)
    token_indices = torch.tensor(masked)
    labels = torch.randint(0, 40, (len(masked),), generator=rng)
    pairs = torch.randint(0, 2, (len(sizes),), generator=rng)
    return Batch(ids, torch.zeros_like(ids), layout, token_indices, {"mlm": labels, pair: pairs})


def test_loss_is_mean_over_targets_of_step() -> None:
    model = tiny_model(40, "mlm", "nsp", dropout=0.0)
    parts = [batch([3, 5], [1, 4, 6]), batch([8], [2])]
    counts = totals(parts)
    assert counts == {"mlm": 4, "nsp": 3}
    losses = [pretrain(model, part, counts) for part in parts]
    rows = []
    for part in parts:
        outputs = model(part)
        rows.append(
            torch.nn.functional.cross_entropy(outputs["mlm"], part.targets["mlm"], reduction="none")
        )
    expected = torch.cat(rows).mean()
    total = sum(loss.parts["mlm"].item() for loss in losses)
    assert total == pytest.approx(expected.item(), abs=1e-5)
    assert sum(s.total.item() for s in losses) == pytest.approx(
        sum(v.item() for s in losses for v in s.parts.values()), abs=1e-5
    )


def test_correct_counts_most_probable_predictions() -> None:
    model = tiny_model(40, "mlm", "sop", dropout=0.0)
    part = batch([4, 4], [1, 5], pair="sop")
    outputs = model(part)
    loss = pretrain(model, part, totals([part]))
    for name in ("mlm", "sop"):
        expected = (outputs[name].argmax(-1) == part.targets[name]).sum().item()
        assert loss.correct[name].item() == expected
