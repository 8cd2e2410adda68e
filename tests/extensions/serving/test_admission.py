"""The door: who comes in, with how much, for how long; and what it says when not."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.extensions.conftest import Server

from bertkit.extensions.serving.admission import AdmissionMiddleware
from bertkit.extensions.serving.limits import ApiKeys, Key, Limits
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.processes import LOOPBACK
from bertkit.pipelines import Embed

KEYS = ApiKeys(
    [
        Key(name="all", sha256=hashlib.sha256(b"secret").hexdigest()),
        Key(
            name="few",
            sha256=hashlib.sha256(b"few").hexdigest(),
            routes=("/embed",),
            requests_per_minute=2,
        ),
        Key(name="tokens", sha256=hashlib.sha256(b"tokens").hexdigest(), tokens_per_minute=10),
    ]
)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_all_but_liveness_is_behind_the_key(server: Server, capsys: Any) -> None:
    client = server(keys=KEYS)
    assert client.get("/health/live").json() == {"status": "live"}
    routes = [("GET", p) for p in ("/info", "/metrics", "/openapi.json", "/health/ready", "/no")]
    for method, path in [*routes, ("POST", "/embed"), ("POST", "/models/x/reload")]:
        for headers in ({}, bearer("wrong")):
            found = client.request(method, path, headers=headers, content=b"{")
            assert found.status_code == 401, path
            assert found.headers["www-authenticate"] == 'Basic realm="bertkit", Bearer'
    assert client.get("/info", headers=bearer("secret")).status_code == 200
    assert client.get("/", auth=("anyone", "secret")).status_code == 200
    assert client.get("/", auth=("secret", "anyone")).status_code == 401
    assert client.get("/info", headers=bearer("few")).status_code == 403
    assert "secret" not in capsys.readouterr().err


def test_a_key_has_its_share(server: Server) -> None:
    client, ask = server(keys=KEYS), {"inputs": "a b c"}
    found = [client.post("/embed", json=ask, headers=bearer("few")) for _ in range(3)]
    assert [f.status_code for f in found] == [200, 200, 429]
    assert int(found[2].headers["retry-after"]) > 0
    found = [client.post("/embed", json=ask, headers=bearer("tokens")) for _ in range(3)]
    assert [f.status_code for f in found] == [200, 200, 429]
    assert "limit of tokens per minute" in found[2].json()["error"]


def test_a_line_of_the_log_is_written_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers share stderr: what they write bit by bit would mix."""
    written: list[str] = []

    class File(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    client = server()
    monkeypatch.setattr(sys, "stderr", File())
    client.post("/embed", json={"inputs": "a"})
    (line,) = [part for part in written if part]
    assert json.loads(line)["route"] == "/embed"
    assert line.endswith("\n")


def test_a_request_is_logged_without_its_text(server: Server, capsys: Any) -> None:
    client = server()
    found = client.post("/embed", json={"inputs": ["a b", "c"]})
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line["id"] == found.headers["x-request-id"]
    assert {k: line[k] for k in ("key", "route", "status", "items", "tokens")} == {
        "key": "anyone",
        "route": "/embed",
        "status": 200,
        "items": 2,
        "tokens": 7,
    }
    client.post("/embed", json={"inputs": "zebra zebra", "truncate": 3})
    client.post("/fill-mask", json={"inputs": "zebra"})
    client.get("/zebra")
    assert "zebra" not in capsys.readouterr().err


def test_what_is_counted(server: Server) -> None:
    client = server()
    client.post("/embed", json={"inputs": ["a b", "c"]})
    client.get("/nowhere")
    text = client.get("/metrics").text
    assert 'bertkit_requests_total{route="/embed",status="200"} 1.0' in text
    assert 'bertkit_requests_total{route="other",status="404"} 1.0' in text
    assert 'bertkit_tokens_total{route="/embed"} 7.0' in text
    assert "bertkit_queue_tokens 0.0" in text
    assert "bertkit_batch_tokens_sum 7.0" in text


def test_loading_and_stopping_are_503() -> None:
    from starlette.testclient import TestClient

    admission = AdmissionMiddleware(limits=Limits(), keys=ApiKeys([]), metrics=Metrics())
    client = TestClient(admission)
    found = client.get("/info")
    assert (found.status_code, found.headers["retry-after"]) == (503, "2")
    assert found.json()["error"] == "the server is loading its models"
    assert client.get("/health/live").status_code == 200
    admission.draining, admission.app = True, object()
    assert client.get("/info").json()["error"] == "the server is stopping"


def test_readiness_is_a_known_vector(server: Server, registry: ModelRegistry) -> None:
    client = server()
    assert client.get("/health/ready").json() == {"status": "ready"}
    one = registry.models["pretrained"]
    known = one.reference
    one.reference = known + 1.0
    found = client.get("/health/ready")
    one.reference = known
    assert found.status_code == 503
    assert "the embeddings of pretrained changed" in found.json()["error"]


def test_vectors_that_are_none_are_no_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    client = server()
    for bad in (float("nan"), float("inf"), 0.0):
        monkeypatch.setattr(Embed, "run", lambda self, works, b=bad: [[b] * 16 for _ in works])
        found = client.post("/embed", json={"inputs": "a"})
        assert found.status_code == 500
        assert json.loads(capsys.readouterr().err.splitlines()[-1])["defect"].startswith(
            "ArithmeticError at "
        )


def test_time_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    run = Embed.run

    def slow(self: Embed, works: Any) -> Any:
        go.wait(5)
        return run(self, works)

    client = server(Limits(timeout=0.2))
    monkeypatch.setattr(Embed, "run", slow)
    start = time.monotonic()
    found = client.post("/embed", json={"inputs": "a"})
    assert time.monotonic() - start < 3
    go.set()
    assert found.status_code == 429
    assert "no response within 0.2 s" in found.json()["error"]
    assert found.headers["retry-after"]


def drive(
    admission: AdmissionMiddleware,
    messages: list[Any],
    headers: Any = (),
    *,
    method: str = "POST",
    query: bytes = b"",
) -> list[Any]:
    """Give a admission ASGI messages by hand; what it sends. Without more it waits for ever."""
    sent: list[Any] = []
    scope = {"type": "http", "method": method, "path": "/embed", "query_string": query}
    scope["headers"] = list(headers)
    left = list(messages)

    async def receive() -> Any:
        return left.pop(0) if left else await asyncio.Future()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(admission(scope, receive, send))
    return sent


class Waits:
    """An application that never answers, and notes that it was told to stop."""

    cancelled = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Future()
        finally:
            self.cancelled = True


def gate_of(app: Any, **limits: Any) -> AdmissionMiddleware:
    admission = AdmissionMiddleware(limits=Limits(**limits), keys=ApiKeys([]), metrics=Metrics())
    admission.app = app
    return admission


def test_who_goes_away_is_not_worked_for(capsys: Any) -> None:
    app = Waits()
    admission = gate_of(app)
    sent = drive(admission, [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}])
    assert sent == []
    assert app.cancelled
    assert admission.open == 0
    assert json.loads(capsys.readouterr().err)["status"] == 499
    early = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    assert drive(admission, early) == []


def test_a_body_is_bounded_as_it_comes() -> None:
    part = {"type": "http.request", "body": b"x" * 60, "more_body": True}
    assert drive(gate_of(Waits(), body_bytes=100), [part, part])[0]["status"] == 413
    assert drive(gate_of(Waits(), body_timeout=0.05), [part])[0]["status"] == 408


@given(body=st.binary(max_size=200), length=st.sampled_from([b"x", b"-1", b"1e3"]))
def test_no_body_is_a_defect(body: bytes, length: bytes) -> None:
    """A admission before an application that only says 204 answers whatever comes."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == body
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    message = {"type": "http.request", "body": body}
    sent = drive(gate_of(app), [message], headers=[(b"content-length", length)])
    assert sent[0]["status"] == 204


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:8000", 204),
        (b"localhost", 204),
        (b"[::1]:80", 204),
        (b"evil.example:8000", 403),
        (b"127.0.0.1.evil.example", 403),
        (b"", 403),
    ],
)
def test_a_page_of_the_web_cannot_ask_by_its_own_name(host: bytes, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    admission = gate_of(app)
    admission.hosts = LOOPBACK
    sent = drive(admission, [{"type": "http.request", "body": b""}], headers=[(b"host", host)])
    assert sent[0]["status"] == status


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, b"text=a", 204),
        ({"sec-fetch-site": "none"}, b"text=a", 204),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, b"", 204),  # a link
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, b"text=a", 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, b"", 403),  # an image
        ({"sec-fetch-site": "same-site"}, b"", 403),
        ({"origin": "http://127.0.0.1:8000"}, b"", 204),
        ({"origin": "http://evil.example"}, b"", 403),
        ({"origin": "null"}, b"", 403),
    ],
)
def test_a_page_of_another_site_computes_nothing(
    headers: dict[str, str], query: bytes, status: int
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    given = [(b"host", b"127.0.0.1:8000"), *((k.encode(), v.encode()) for k, v in headers.items())]
    sent = drive(
        gate_of(app),
        [{"type": "http.request", "body": b""}],
        headers=given,
        method="GET",
        query=query,
    )
    assert sent[0]["status"] == status
    assert (b"content-security-policy", b"frame-ancestors 'none'") in sent[0]["headers"]


def test_open_requests_are_bounded() -> None:
    admission = gate_of(Waits(), requests=1)
    admission.open = 1
    assert drive(admission, [{"type": "http.request", "body": b"{}"}])[0]["status"] == 429
