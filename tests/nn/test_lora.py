"""Linear layers with LoRA adapters: initialization, separate parts, and merging."""

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
def test_initial_output_matches_linear_layer(bias: bool) -> None:
    linear, x = nn.Linear(6, 8, bias), torch.randn(5, 6)
    adapted = LoRALinear(linear, (4, 2, 2), rank=2, alpha=5.0, dropout=0.5)
    assert torch.equal(adapted(x), linear(x))
    assert adapted.weight is linear.weight
    assert adapted.lora_a.std() > 0.1
    nn.init.normal_(adapted.lora_b)
    assert not torch.allclose(adapted(x), linear(x))  # the control


def test_output_adds_low_rank_product_per_part() -> None:
    """The output follows equation 3 of Hu et al. 2021 for queries, keys, and values."""
    adapted, x = layer(), torch.randn(5, 6)
    nn.init.normal_(adapted.lora_b)
    rows = [slice(0, 4), slice(4, 6), slice(6, 8)]
    for part, part_rows in enumerate(rows):
        a, b = adapted.lora_a[2 * part : 2 * part + 2], adapted.lora_b[part_rows]
        expected = (
            x @ adapted.weight[part_rows].T + adapted.bias[part_rows] + 5.0 / 2 * (x @ a.T @ b.T)
        )
        assert torch.allclose(adapted(x)[:, part_rows], expected, atol=1e-6)
    merged = adapted.merged()
    assert type(merged) is nn.Linear
    assert torch.allclose(merged(x), adapted(x), atol=1e-6)
    with torch.no_grad():
        adapted.lora_a[2:4] += 1.0
    changed = (adapted(x) - merged(x)).abs().amax(0) > 1e-4
    assert changed.tolist() == [False] * 4 + [True] * 2 + [False] * 2


def test_dropout_applies_to_adapter_input() -> None:
    adapted, x = layer(dropout=0.5), torch.randn(5, 6)
    nn.init.normal_(adapted.lora_b)
    assert not torch.equal(adapted(x), adapted(x))
    adapted.eval()
    assert torch.equal(adapted(x), adapted(x))
    nn.init.zeros_(adapted.lora_b)
    adapted.train()
    assert torch.equal(adapted(x), adapted(x))  # the layer itself has no dropout


def test_frozen_weights_get_no_gradient() -> None:
    adapted = layer()
    adapted.weight.requires_grad_(False)
    adapted.bias.requires_grad_(False)
    adapted(torch.randn(3, 6)).sum().backward()
    assert adapted.weight.grad is None
    assert adapted.lora_b.grad is not None
    assert adapted.lora_b.grad.abs().min() > 0
