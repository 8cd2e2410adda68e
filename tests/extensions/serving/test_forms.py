"""Validation of form values."""

from __future__ import annotations

from typing import Any

import pytest

from bertkit.extensions.generation.pages import CorruptionForm, StepsForm
from bertkit.extensions.serving.request_bodies import decode_form
from bertkit.extensions.zero_shot.classification import ZeroShotOptions
from bertkit.web import RequestError


def test_decode_form_omits_empty_values() -> None:
    form = decode_form(StepsForm, {"text": "a b", "beams": "3", "model": " "})
    assert (form.text, form.beams, form.model) == ("a b", 3, None)
    values = {"text": "a", "damage": "", "seed": "7", "model": "m"}
    damage = decode_form(CorruptionForm, values)
    assert (damage.damage, damage.seed, damage.model) == ("spans", 7, "m")


def test_decode_form_splits_lists_at_commas() -> None:
    form = decode_form(
        ZeroShotOptions, {"candidate_labels": " sports,world politics ", "multi_label": "true"}
    )
    assert (form.candidate_labels, form.multi_label) == (("sports", "world politics"), True)


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        (StepsForm, {"text": "a", "beams": "9"}, "beams"),
        (StepsForm, {"text": "a", "beams": "many"}, "beams"),
        (StepsForm, {"text": " "}, "text"),
        (CorruptionForm, {"text": "a", "seed": "-1"}, "seed"),
        (CorruptionForm, {"text": "a", "seed": str(1 << 32)}, "seed"),
        (CorruptionForm, {"text": "a", "damage": "<b>"}, "damage"),
        (ZeroShotOptions, {"candidate_labels": "a,,b"}, "candidate_labels"),
        (ZeroShotOptions, {"candidate_labels": "a,a"}, "candidate_labels must not contain"),
    ],
)
def test_decode_form_names_the_invalid_field(kind: Any, fields: dict[str, str], name: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_form(kind, fields)
    assert caught.value.status == 422
    assert name in caught.value.message
