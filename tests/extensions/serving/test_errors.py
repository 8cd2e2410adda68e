"""Error responses in the format of TEI, or of OpenAI on its routes."""

from __future__ import annotations

import json

from bertkit.extensions.serving.errors import busy, error_response, too_much


def test_error_response_has_format_of_route() -> None:
    error = too_much("a text of 9 characters exceeds the maximum of 8", "inputs.0")
    assert error.status == 413
    assert json.loads(error_response(error, "/embed").body) == {
        "error": "a text of 9 characters exceeds the maximum of 8",
        "error_type": "too_large",
        "field": "inputs.0",
    }
    assert json.loads(error_response(error, "/v1/embeddings").body) == {
        "error": {
            "message": "a text of 9 characters exceeds the maximum of 8",
            "type": "too_large",
            "param": "inputs.0",
        }
    }


def test_busy_error_contains_retry_time() -> None:
    error = busy(3, "full")
    assert (error.status, error.headers) == (429, {"retry-after": "3"})
    assert "field" not in json.loads(error_response(error, "/embed").body)
