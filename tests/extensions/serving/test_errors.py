"""Error responses in the format of TEI, or of OpenAI on its routes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from bertkit.errors import CheckpointError, DataError
from bertkit.extensions.serving.errors import busy, error_response, too_much
from bertkit.extensions.serving.request_context import request_error
from bertkit.web import RequestError, invalid

INVALID = "invalid_request_error"

FORMATS: list[tuple[Exception, tuple[int, str], tuple[int, str, str | None]]] = [
    (RequestError(400, "an empty list", "inputs"), (400, "Empty"), (400, INVALID, None)),
    (invalid("unknown", "inputs"), (422, "Validation"), (400, INVALID, None)),
    (DataError("no mask"), (422, "Validation"), (400, INVALID, None)),
    (too_much("long"), (413, "Validation"), (400, INVALID, "context_length_exceeded")),
    (busy(3, "full"), (429, "Overloaded"), (429, "requests", "rate_limit_exceeded")),
    (ArithmeticError("nan"), (424, "Backend"), (500, "server_error", None)),
    (KeyError("bug"), (500, "Backend"), (500, "server_error", None)),
    (CheckpointError("damaged"), (503, "Unhealthy"), (503, "server_error", None)),
    (RequestError(401, "key"), (401, "Validation"), (401, INVALID, "invalid_api_key")),
    (HTTPException(404), (404, "Validation"), (404, INVALID, None)),
    (RequestError(404, "x", "model"), (404, "Validation"), (404, INVALID, "model_not_found")),
    (HTTPException(405), (405, "Validation"), (405, INVALID, None)),
]


@pytest.mark.parametrize(("raised", "tei", "openai"), FORMATS)
def test_error_response_has_format_of_route(
    raised: Exception, tei: tuple[Any, ...], openai: tuple[Any, ...]
) -> None:
    error = request_error(raised)
    response = error_response(error, "/embed")
    body = json.loads(response.body)
    assert (response.status_code, body.pop("error_type")) == tei
    assert body == {"error": error.message, **({"field": error.field} if error.field else {})}
    for path in ("/v1/embeddings", "/v2/rerank"):
        response = error_response(error, path)
        body = json.loads(response.body)["error"]
        assert body.keys() == {"message", "type", "param", "code"}
        assert (response.status_code, body["type"], body["code"]) == openai
        assert (body["message"], body["param"]) == (error.message, error.field)


def test_busy_error_contains_retry_time() -> None:
    error = busy(3, "full")
    assert (error.status, error.headers) == (429, {"retry-after": "3"})
    assert error_response(error, "/v1/embeddings").headers["retry-after"] == "3"
