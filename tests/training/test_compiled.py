"""Compiled layers give the same losses and gradients, and are compiled for all sizes at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.factories import tiny_model

from bertkit.batch import Batch, Packed
from bertkit.families import MODERNBERT
from bertkit.models.model import Model
from bertkit.objectives.loss import totals
from bertkit.objectives.pretrain import pretrain
from bertkit.training.compiled import compile_blocks


def batch(lengths: list[int]) -> Batch:
    generator = torch.Generator().manual_seed(len(lengths))
    ids = torch.randint(5, 20, (sum(lengths),), generator=generator)
    places = torch.arange(0, len(ids), 3)
    layout = Packed.of(sorted(lengths))
    return Batch(ids, ids % 2, layout, token_indices=places, targets={"mlm": ids[places]})


def learned(model: Model, batches: list[Batch]) -> tuple[list[float], list[torch.Tensor]]:
    losses = []
    for each in batches:
        loss = model(each, lambda m, b: pretrain(m, b, totals([b])))
        loss.total.backward()
        losses.append(loss.total.item())
    return losses, [weight.grad for weight in model.parameters() if weight.grad is not None]


SHAPES: dict[str, dict[str, Any]] = {
    "BERT": {"layers": 12},  # more layers than a function is compiled anew for
    "ModernBERT": {"family": MODERNBERT, "layers": 4},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the compiler looks at itself
def test_compiled_layers_learn_the_same(shape: str) -> None:
    torch._dynamo.reset()
    model = tiny_model(20, "mlm", dropout=0.0, **SHAPES[shape])
    names = [name for name, _ in model.named_parameters()]
    batches = [batch([3] * count + [7, 9]) for count in range(4, 12)]
    losses, gradients = learned(model, batches)
    model.zero_grad()
    compile_blocks(model, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    again, same = learned(model, batches)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert 0 < graphs <= 6
    assert again == pytest.approx(losses, abs=1e-6)
    for one, other in zip(same, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert [name for name, _ in model.named_parameters()] == names
    learned(model, [batch([2, 5, 11, 30])])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
