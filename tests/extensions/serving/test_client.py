"""The client reports errors of the server, and retries if the server is busy."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import numpy as np
import pytest

from bertkit import Client
from bertkit.errors import ConfigError, DataError, ServeError
from bertkit.extensions.serving import client as clients


def answering(*replies: Any) -> tuple[Any, list[Any]]:
    """Return a transport with these replies, and the list of requests."""
    remaining, requests = list(replies), []

    def handle(request: Any) -> Any:
        body = request.content
        requests.append((request.url.path, json.loads(body) if body else None, request.headers))
        status, answer, *headers = remaining.pop(0)
        return httpx.Response(status, json=answer, headers=dict(*headers))

    return httpx.MockTransport(handle), requests


def test_client_sends_valid_requests() -> None:
    server, requests = answering(
        (200, [[1, 2]]), (200, {"answer": "b"}), *[(200, [])] * 2, (200, {})
    )
    client = Client("http://here", key="k", transport=server)
    assert client.embed("a", truncate=True).tolist() == [[1.0, 2.0]]
    assert client.answer("q", "c") == {"answer": "b"}
    client.rerank("q", ("a", "b"))
    client.rerank("q", "a b")
    client.info()
    assert [(path, body) for path, body, _ in requests] == [
        ("/embed", {"inputs": "a", "truncate": True}),
        ("/answer", {"inputs": {"question": "q", "context": "c"}}),
        ("/rerank", {"query": "q", "texts": ["a", "b"]}),
        ("/rerank", {"query": "q", "texts": ["a b"]}),
        ("/info", None),
    ]
    assert {headers["authorization"] for *_, headers in requests} == {"Bearer k"}


def test_client_strips_and_hides_key(monkeypatch: pytest.MonkeyPatch) -> None:
    # Files that contain a key end with a newline.
    monkeypatch.setenv("BERTKIT_KEY", "s3cret\n")
    server, requests = answering((200, {}))
    Client("http://here", transport=server).info()
    assert requests[0][2]["authorization"] == "Bearer s3cret"
    for key in ("s3cr\u00e9t", "s3cr\net"):
        with pytest.raises(
            ConfigError, match=r"^BERTKIT_KEY: the key contains a char"
        ) as key_error:
            Client("http://here", key=key)
        assert "s3cr" not in str(key_error.value)


def test_client_sends_arrays_and_rejects_invalid_json() -> None:
    server, requests = answering((200, [[1], [2]]))
    client = Client("http://here", transport=server)
    assert client.embed(np.array(["a", "b"])).shape == (2, 1)  # type: ignore[arg-type]
    assert requests[0][1] == {"inputs": ["a", "b"]}
    for wrong in ({"a"}, [float("nan")], ["\ud83d"]):
        with pytest.raises(DataError, match="/embed: a field cannot be encoded as JSON"):
            client.embed(wrong)  # type: ignore[arg-type]


def test_client_retries_busy_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(clients.time, "sleep", waits.append)
    busy = (429, {"error": "later"}, {"retry-after": "3"})
    stopping = (503, {"error": "stopping"}, {"retry-after": "1"})
    server, requests = answering(busy, stopping, (200, [[1]]))
    assert Client("http://here", transport=server).embed("a").shape == (1, 1)
    assert waits == [3.0, 1.0]
    server, requests = answering(busy)
    with pytest.raises(ServeError, match="http://here/embed: later"):
        Client("http://here", transport=server, patience=2.0).embed("a")
    assert len(requests) == 1
    server, requests = answering((503, {"error": "the store is damaged"}))
    # The client does not retry.
    with pytest.raises(ServeError, match="the store is damaged"):
        Client("http://here", transport=server).search("a")
    assert (len(requests), waits) == (1, [3.0, 1.0])
    dated = (503, {}, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"})
    server, requests = answering(dated, (200, [[1]]))
    Client("http://here", transport=server).embed("a")
    assert waits[-1] == 1.0
    other = httpx.MockTransport(lambda _: httpx.Response(200, text="<html>"))
    with pytest.raises(ServeError, match="invalid JSON; check the URL"):
        Client("http://here", transport=other).info()


def test_client_raises_error_message_of_server() -> None:
    server, _ = answering((422, {"error": "too long", "field": "inputs.0"}), (502, "<html>"))
    client = Client("http://here", transport=server)
    with pytest.raises(ServeError, match=r"too long \(inputs\.0\)"):
        client.embed("a")
    with pytest.raises(ServeError, match="HTTP 502"):
        client.embed("a")
    server, _ = answering((422, {"error": "too long (bertkit serve --truncate does for all)"}))
    # The message contains the option of the server, not a Python argument.
    with pytest.raises(ServeError, match=r"bertkit serve --truncate does"):
        Client("http://here", transport=server).embed("a")
    server, _ = answering((404, {"error": {"message": "no model 'x'", "type": "not_found"}}))
    with pytest.raises(ServeError, match=r": no model 'x'$"):
        Client("http://here", transport=server).ask("/v1/embeddings", input="a")


def test_client_without_httpx_raises_clear_error() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "from bertkit.errors import BertkitError\n"
        "try:\n    from bertkit import Client\n"
        "except BertkitError as error:\n    print(error)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "httpx is not installed" in output.stdout
    assert "pip install 'bertkit[serving]'" in output.stdout
