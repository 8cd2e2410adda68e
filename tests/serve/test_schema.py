"""What is asked: checked at a cost that does not grow with what is wrong."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from bertkit.serve.schema import EmbedAsk, Given, task_ask
from bertkit.tasks.answer import Answer

MANY = {f"x{number}": 1 for number in range(1_000)}


def test_of_many_unknown_fields_the_first_is_enough() -> None:
    with pytest.raises(ValidationError) as found:
        EmbedAsk.model_validate({"inputs": "a", **MANY})
    assert [error["loc"] for error in found.value.errors()] == [("x0",)]
    with pytest.raises(ValidationError) as found:
        task_ask(Answer).model_validate({"inputs": {"question": "a", "context": "b", **MANY}})
    assert found.value.error_count() < 5  # of each part of the union one

    class Plain(BaseModel):
        model_config = Given.model_config
        inputs: str

    with pytest.raises(ValidationError) as found:  # a control: pydantic's own
        Plain.model_validate({"inputs": "a", **MANY})
    assert found.value.error_count() == len(MANY)


def test_known_fields_are_checked_beside_an_unknown_one() -> None:
    with pytest.raises(ValidationError) as found:
        EmbedAsk.model_validate({"inputs": 5, "normalise": True})
    assert {error["loc"][0] for error in found.value.errors()} == {"inputs", "normalise"}
    assert EmbedAsk.model_validate({"inputs": "a", "normalize": False}).normalize is False
