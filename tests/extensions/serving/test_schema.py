"""Validation of requests: the first error is reported with its field in a short message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bertkit.extensions.serving.errors import error_response
from bertkit.extensions.serving.generated import PairsAsk, request_type
from bertkit.extensions.serving.request_bodies import decode
from bertkit.extensions.serving.schema import EmbedAsk, OpenAIAsk, PredictAsk, RankAsk
from bertkit.pipelines.task import item_type
from bertkit.tasks.answer import Answer
from bertkit.tasks.task import NoOptions
from bertkit.web import Ask, RequestError

ANSWER_ASK = request_type(
    "answer", SimpleNamespace(item=item_type(Answer), example=("Who?", "A cat."), options=NoOptions)
)
MANY = {f"x{number}": 1 for number in range(1_000)}


def decode_error(kind: type[Ask], body: Any) -> RequestError:
    sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(RequestError) as error:
        decode(kind, sent)
    assert len(error_response(error.value, "/").body) < 400
    return error.value


def test_decode_reports_only_first_unknown_field() -> None:
    assert decode_error(EmbedAsk, {"inputs": "a", **MANY}).field == "x0"
    item = {"question": "a", "context": "b", **MANY}
    assert decode_error(ANSWER_ASK, {"inputs": item}).field == "x0"


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": "a", "x" * 100_000: 1},
        {"inputs": "a", "truncation_direction": "x" * 100_000},
        {"inputs": [0.5] * 100_000},
        b'{"inputs": "a", "model": ' + b"[" * 100_000,
        b'{"inputs": "\xff"}',
        b'{"inputs": "\\ud800"}',
        b"[" * 100_000,
        b"",
    ],
)
def test_decode_errors_have_short_messages(body: Any) -> None:
    assert decode_error(EmbedAsk, body).status == 422


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"query": "a", "documents": ["b"], "top_n": 1e999}', None),
        ({"query": "a", "documents": [{"text": 1}]}, "documents.0"),
    ],
)
def test_decode_errors_name_only_known_parts_of_the_path(body: Any, field: str | None) -> None:
    assert decode_error(RankAsk, body).field == field


@pytest.mark.parametrize(
    "inputs", [["a", ["b", "c"]], [["b", "c"], "a"], ["a", "b", "c"], [["a"] * 3]]
)
def test_decode_rejects_pair_mixed_with_pairs(inputs: Any) -> None:
    field = decode_error(PairsAsk, {"inputs": inputs}).field
    assert (field or "").startswith("inputs")


def test_decode_accepts_texts_pairs_and_lists() -> None:
    for inputs in ("a", ["a"], ["a", "b"], [["a"]], [["a", "b"], ["c"]]):
        assert decode(PredictAsk, msgspec.json.encode({"inputs": inputs})).inputs == inputs


@pytest.mark.parametrize("ids", [[1, 2], [[1, 2], [3]], ["a", [1]]])
def test_decode_accepts_token_ids(ids: Any) -> None:
    assert decode(OpenAIAsk, msgspec.json.encode({"input": ids})).input == ids
    assert decode(EmbedAsk, msgspec.json.encode({"inputs": ids})).inputs == ids
    assert "`float`" in decode_error(OpenAIAsk, {"input": [0.5]}).message
    assert "`int` >= 0" in decode_error(OpenAIAsk, {"input": [-1]}).message


def test_decode_rejects_lone_surrogate() -> None:
    assert "surrogate" in decode_error(EmbedAsk, b'{"inputs": "\\ud800"}').message
    assert decode(EmbedAsk, b'{"inputs": "\\ud83d\\ude00"}').inputs == "\U0001f600"
