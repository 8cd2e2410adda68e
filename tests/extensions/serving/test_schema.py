"""What is asked: refused at the first fault, in a short message that names the field."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bertkit.extensions.serving.errors import error_response
from bertkit.extensions.serving.generated import PairsAsk, request_type
from bertkit.extensions.serving.request_bodies import decode
from bertkit.extensions.serving.schema import EmbedAsk, OpenAIAsk, PredictAsk
from bertkit.pipelines.task import item_type
from bertkit.tasks.answer import Answer
from bertkit.tasks.task import NoOptions
from bertkit.web import Ask, RequestError

ANSWER_ASK = request_type(
    "answer",
    SimpleNamespace(item=item_type(Answer), example=("Who?", "A cat."), options=NoOptions),
)
MANY = {f"x{number}": 1 for number in range(1_000)}


def refused(kind: type[Ask], body: Any) -> RequestError:
    sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(RequestError) as error:
        decode(kind, sent)
    assert len(error_response(error.value, "/").body) < 400
    return error.value


def test_of_many_unknown_fields_the_first_is_enough() -> None:
    assert refused(EmbedAsk, {"inputs": "a", **MANY}).field == "x0"
    item = {"question": "a", "context": "b", **MANY}
    assert refused(ANSWER_ASK, {"inputs": item}).field == "x0"


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": "a", "x" * 100_000: 1},
        {"inputs": "a", "truncation_direction": "x" * 100_000},
        {"inputs": [1] * 100_000},
        b'{"inputs": "a", "model": ' + b"[" * 100_000,
        b'{"inputs": "\xff"}',
        b'{"inputs": "\\ud800"}',
        b"[" * 100_000,
        b"",
    ],
)
def test_a_message_is_short_whatever_is_sent(body: Any) -> None:
    assert refused(EmbedAsk, body).status == 422


@pytest.mark.parametrize(
    "inputs", [["a", ["b", "c"]], [["b", "c"], "a"], ["a", "b", "c"], [["a"] * 3]]
)
def test_a_pair_is_not_mixed_with_pairs(inputs: Any) -> None:
    field = refused(PairsAsk, {"inputs": inputs}).field
    assert (field or "").startswith("inputs")


def test_a_text_or_a_pair_or_several() -> None:
    for inputs in ("a", ["a"], ["a", "b"], [["a"]], [["a", "b"], ["c"]]):
        assert decode(PredictAsk, msgspec.json.encode({"inputs": inputs})).inputs == inputs


@pytest.mark.parametrize("ids", [[1, 2], [[1, 2], [3]]])
def test_token_ids_are_refused_with_what_sends_texts(ids: Any) -> None:
    refusal = refused(OpenAIAsk, {"input": ids})
    assert refusal.message.startswith("token ids are not supported")
    assert "check_embedding_ctx_length=False" in refusal.message
    assert refusal.field == "input.0"
    assert "`array`" in refused(EmbedAsk, {"inputs": [[1]]}).message  # TEI takes none
    assert "`float`" in refused(OpenAIAsk, {"input": [0.5]}).message


def test_half_of_a_surrogate_pair_is_named() -> None:
    assert "surrogate" in refused(EmbedAsk, b'{"inputs": "\\ud800"}').message
    assert decode(EmbedAsk, b'{"inputs": "\\ud83d\\ude00"}').inputs == "\U0001f600"
