"""Predictions of GLiNER models equal those of the package `gliner`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extensions.zero_shot.gliner_models import CASES, GOLDEN, TEXTS, VARIANTS, write_gliner

import bertkit

TOLERANCE = 1e-4
CHANGED = {
    "spans": ("rnn.lstm.weight_hh_l0_reverse", "span_rep_layer.span_rep_layer.out_project.3.bias"),
    "spans without LSTM": ("prompt_rep_layer.3.bias",),
    "tokens": ("scorer.proj_label.weight", "rnn.lstm.weight_ih_l1"),
}
"""Weights of which the control changes one value."""


def golden(variant: str) -> list[list[list[list[Any]]]]:
    rows: list[list[list[list[Any]]]] = json.loads(GOLDEN.read_text("utf-8"))[variant]
    return rows


def predicted(folder: Path, **options: Any) -> list[list[list[Any]]]:
    """Return the predictions of bertkit in the format of the golden file."""
    find = bertkit.pipeline("zero-shot-entities", folder)
    answers = find(TEXTS, long="truncate", **options)
    for text, entities in zip(TEXTS, answers, strict=True):
        assert all(text[entity.start : entity.end] == entity.text for entity in entities)
    return [[[e.start, e.end, e.type, e.score] for e in entities] for entities in answers]


def is_equal(actual: list[list[list[Any]]], expected: list[list[list[Any]]]) -> bool:
    for found, reference in zip(actual, expected, strict=True):
        if [entity[:3] for entity in found] != [entity[:3] for entity in reference]:
            return False
        scores = [entity[3] for entity in reference]
        if [entity[3] for entity in found] != pytest.approx(scores, abs=TOLERANCE):
            return False
    return True


@pytest.mark.parametrize("variant", VARIANTS)
def test_predictions_match_gliner(variant: str, tmp_path: Path) -> None:
    folder = write_gliner(tmp_path / "model", variant)
    expected = golden(variant)
    assert sum(len(entities) for case in expected for entities in case) > 50
    for case, reference in zip(CASES, expected, strict=True):
        assert is_equal(predicted(folder, **case), reference), case


@pytest.mark.parametrize(
    ("variant", "name"), [(variant, name) for variant in CHANGED for name in CHANGED[variant]]
)
def test_control_changed_weight_differs(variant: str, name: str, tmp_path: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[0] += 0.5

    folder = write_gliner(tmp_path / "model", variant, edit=edit)
    actual = [
        is_equal(predicted(folder, **c), r) for c, r in zip(CASES, golden(variant), strict=True)
    ]
    assert not all(actual)


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("spans", {"max_width": 2}),
        ("spans", {"max_len": 20}),
        ("spans", {"embed_ent_token": False}),
        ("tokens", {"sep_token": "[SEP]"}),
    ],
)
def test_settings_change_predictions(variant: str, changes: dict[str, Any], tmp_path: Path) -> None:
    folder = write_gliner(tmp_path / "model", variant, changes=changes)
    actual = [
        is_equal(predicted(folder, **c), r) for c, r in zip(CASES, golden(variant), strict=True)
    ]
    assert not all(actual)
