"""Losses, gradients, and recompilation of compiled layers."""

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
    masked = torch.arange(0, len(ids), 3)
    layout = Packed.of(sorted(lengths))
    return Batch(ids, ids % 2, layout, token_indices=masked, targets={"mlm": ids[masked]})


def losses_and_gradients(
    model: Model, batches: list[Batch]
) -> tuple[list[float], list[torch.Tensor]]:
    losses = []
    for item in batches:
        loss = model(item, lambda m, b: pretrain(m, b, totals([b])))
        loss.total.backward()
        losses.append(loss.total.item())
    return losses, [weight.grad for weight in model.parameters() if weight.grad is not None]


SHAPES: dict[str, dict[str, Any]] = {
    "BERT": {"layers": 12},  # More layers than the recompilation limit of a function.
    "ModernBERT": {"family": MODERNBERT, "layers": 4},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # The compiler reads it.
def test_compiled_layers_match_losses_and_gradients(shape: str) -> None:
    torch._dynamo.reset()
    model = tiny_model(20, "mlm", dropout=0.0, **SHAPES[shape])
    names = [name for name, _ in model.named_parameters()]
    batches = [batch([3] * count + [7, 9]) for count in range(4, 12)]
    losses, gradients = losses_and_gradients(model, batches)
    model.zero_grad()
    compile_blocks(model, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    compiled_losses, compiled_gradients = losses_and_gradients(model, batches)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert 0 < graphs <= 6
    assert compiled_losses == pytest.approx(losses, abs=1e-6)
    for actual, expected in zip(compiled_gradients, gradients, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert [name for name, _ in model.named_parameters()] == names
    losses_and_gradients(model, [batch([2, 5, 11, 30])])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
