"""What is refused says so in the words of TEI, or of OpenAI on its routes."""

from __future__ import annotations

import json

from bertkit.extensions.serving.errors import busy, error_response, too_much


def test_a_refusal_is_written_as_the_clients_of_its_route_read_it() -> None:
    refused = too_much("a text of 9 characters exceeds the maximum of 8", "inputs.0")
    assert refused.status == 413
    assert json.loads(error_response(refused, "/embed").body) == {
        "error": "a text of 9 characters exceeds the maximum of 8",
        "error_type": "too_large",
        "field": "inputs.0",
    }
    assert json.loads(error_response(refused, "/v1/embeddings").body) == {
        "error": {
            "message": "a text of 9 characters exceeds the maximum of 8",
            "type": "too_large",
            "param": "inputs.0",
        }
    }


def test_who_comes_too_early_is_told_when_to_come_again() -> None:
    refused = busy(3, "full")
    assert (refused.status, refused.headers) == (429, {"retry-after": "3"})
    assert "field" not in json.loads(error_response(refused, "/embed").body)
