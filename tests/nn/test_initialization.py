"""Weights are initialized like in BERT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.factories import tiny_config, tiny_model

from bertkit.checkpoint.directory import load
from bertkit.models.heads import CRFTagger
from bertkit.models.model import build
from bertkit.nn.initialization import zero_init_residuals

LABELS = ("O", "B-x", "I-x")


def test_initial_weights_match_truncated_normal() -> None:
    model = tiny_model(3000, "mlm", "nsp", hidden=64, layers=2, heads=4, intermediate=128)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" in name:
            assert (weight == 1).all(), name
        elif weight.numel() > 5000:
            assert weight.abs().max() <= 0.04, name
            # truncation at two standard deviations reduces the standard deviation to 88%
            assert weight.std().item() == pytest.approx(0.0176, rel=0.05), name


def test_missing_head_is_scaled_by_hidden_size(bert: Path) -> None:
    names = [f"label-{number}" for number in range(200)]
    head = load(bert, heads=("tag",), labels=names).model.heads["tag"]
    weights = dict(head.named_parameters())
    assert weights.keys() == {"out.weight", "out.bias"}
    assert not weights["out.bias"].any()
    hidden = weights["out.weight"].shape[1]
    assert weights["out.weight"].std().item() == pytest.approx(0.88 * hidden**-0.5, rel=0.05)


def test_zero_init_residuals_zeroes_last_matrices() -> None:
    decoder = tiny_config(30, **{"attention.cross": True, "attention.causal": True})
    model = build(tiny_config(30, layers=2), decoder=decoder)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    zero_init_residuals(model)
    ends = ("attention.out.weight", "cross.out.weight", "feedforward.down.weight")
    for name, weight in model.named_parameters():
        last = name.endswith(ends)
        assert bool(weight.any()) == bool(before[name].any() and not last), name
        assert last or torch.equal(weight, before[name])
    assert sum(name.endswith(ends) for name in before) == 2 * 2 + 3


def test_new_crf_head_has_zero_transitions(bert: Path) -> None:
    added = load(bert, heads=("crf",), labels=LABELS).model
    for model in (tiny_model(30, "crf", labels=LABELS), added):
        head = model.heads["crf"]
        assert isinstance(head, CRFTagger)
        assert not any(scores.any() for scores in head.crf.parameters())
        assert head.out.weight.all()
