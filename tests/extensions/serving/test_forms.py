"""Fields of forms are checked as the bodies of requests are, and refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from bertkit.extensions.serving.errors import Refused
from bertkit.extensions.serving.forms import DamageForm, StepsForm, filled


def test_fields_are_read_and_empty_ones_left_out() -> None:
    form = filled(StepsForm, text="a b", beams="3", model=" ")
    assert (form.text, form.beams, form.model) == ("a b", 3, None)
    damage = filled(DamageForm, text="a", damage="", seed="7", model="m")
    assert (damage.damage, damage.seed, damage.model) == ("spans", 7, "m")


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        (StepsForm, {"text": "a", "beams": "9"}, "beams"),
        (StepsForm, {"text": "a", "beams": "many"}, "beams"),
        (StepsForm, {"text": " "}, "text"),
        (DamageForm, {"text": "a", "seed": "-1"}, "seed"),
        (DamageForm, {"text": "a", "seed": str(1 << 32)}, "seed"),
        (DamageForm, {"text": "a", "damage": "<b>"}, "damage"),
    ],
)
def test_what_is_none_is_refused_by_its_field(kind: Any, fields: dict[str, str], name: str) -> None:
    with pytest.raises(Refused) as caught:
        filled(kind, **fields)
    assert caught.value.status == 422
    assert name in caught.value.sentence
