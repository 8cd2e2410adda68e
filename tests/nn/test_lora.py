"""A linear layer with adapters: begins as it was, learns in parts, can be merged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bertkit.nn.lora import LoRALinear


def layer(
    sizes: tuple[int, ...] = (4, 2, 2), *, bias: bool = True, dropout: float = 0.0
) -> LoRALinear:
    linear = nn.Linear(6, sum(sizes), bias)
    return LoRALinear(linear, sizes, rank=2, alpha=5.0, dropout=dropout)


@pytest.mark.parametrize("bias", [True, False])
def test_it_begins_as_the_layer_was(bias: bool) -> None:
    linear, x = nn.Linear(6, 8, bias), torch.randn(5, 6)
    adapted = LoRALinear(linear, (4, 2, 2), rank=2, alpha=5.0, dropout=0.5)
    assert torch.equal(adapted(x), linear(x))
    assert adapted.weight is linear.weight
    assert adapted.lora_a.std() > 0.1
    nn.init.normal_(adapted.lora_b)
    assert not torch.allclose(adapted(x), linear(x))  # the control


def test_it_adds_the_product_of_each_part() -> None:
    """Equation 3 of Hu et al. 2021, for queries, keys and values apart."""
    one, x = layer(), torch.randn(5, 6)
    nn.init.normal_(one.lora_b)
    rows = [slice(0, 4), slice(4, 6), slice(6, 8)]
    for part, place in enumerate(rows):
        a, b = one.lora_a[2 * part : 2 * part + 2], one.lora_b[place]
        expected = x @ one.weight[place].T + one.bias[place] + 5.0 / 2 * (x @ a.T @ b.T)
        assert torch.allclose(one(x)[:, place], expected, atol=1e-6)
    merged = one.merged()
    assert type(merged) is nn.Linear
    assert torch.allclose(merged(x), one(x), atol=1e-6)
    with torch.no_grad():
        one.lora_a[2:4] += 1.0
    changed = (one(x) - merged(x)).abs().amax(0) > 1e-4
    assert changed.tolist() == [False] * 4 + [True] * 2 + [False] * 2


def test_dropout_is_on_what_adapters_read() -> None:
    one, x = layer(dropout=0.5), torch.randn(5, 6)
    nn.init.normal_(one.lora_b)
    assert not torch.equal(one(x), one(x))
    one.eval()
    assert torch.equal(one(x), one(x))
    nn.init.zeros_(one.lora_b)
    one.train()
    assert torch.equal(one(x), one(x))  # the layer itself reads all


def test_weights_that_are_frozen_get_no_gradient() -> None:
    one = layer()
    one.weight.requires_grad_(False)
    one.bias.requires_grad_(False)
    one(torch.randn(3, 6)).sum().backward()
    assert one.weight.grad is None
    assert one.lora_b.grad is not None
    assert one.lora_b.grad.abs().min() > 0
