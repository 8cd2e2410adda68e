"""Removing pruned heads from the computation does not change the output."""

from __future__ import annotations

import torch
from tests.factories import tiny_model

from bertkit.batch import Batch, Packed
from bertkit.engine.engine import Engine
from bertkit.engine.pruned_heads import without_pruned_heads
from bertkit.models.model import Model
from bertkit.models.surgery import without_heads


def model() -> Model:
    return tiny_model(50, hidden=24, layers=2, heads=3, spread=0.1).eval()


def batch() -> Batch:
    layout = Packed.of([3, 5, 20])
    ids = torch.randint(0, 50, (layout.total,))
    return Batch(ids, torch.zeros_like(ids), layout)


def test_removed_pruned_heads_keep_states() -> None:
    pruned, inputs = without_heads(model(), [(1, 1), (1, 3), (2, 2)]), batch()
    light = without_pruned_heads(pruned)
    assert [block.attention.heads for block in light.encoder.blocks] == [1, 2]
    assert light.encoder.blocks[0].attention.qkv.weight.shape == (24, 24)
    assert [block.attention.heads for block in pruned.encoder.blocks] == [3, 3]
    with torch.no_grad():
        states = pruned.encoder(inputs)
        torch.testing.assert_close(light.encoder(inputs), states, atol=1e-6, rtol=1e-5)
        packed = Engine(pruned).model
        torch.testing.assert_close(packed.encoder(inputs), states, atol=1e-5, rtol=1e-4)
    assert [block.attention.heads for block in packed.encoder.blocks] == [1, 2]


def test_model_without_pruned_heads_is_not_copied() -> None:
    whole = model()
    assert without_pruned_heads(whole) is whole


def test_layer_with_all_heads_pruned_keeps_one() -> None:
    pruned, inputs = model(), batch()
    with torch.no_grad():
        pruned.encoder.blocks[0].attention.out.weight.zero_()
        light = without_pruned_heads(pruned)
        assert light.encoder.blocks[0].attention.heads == 1
        torch.testing.assert_close(light.encoder(inputs), pruned.encoder(inputs))
