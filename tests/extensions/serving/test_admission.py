"""Admission of requests: keys, limits, timeouts, hosts, and the error responses."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import json
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.extensions.conftest import Server

from bertkit.errors import DataError
from bertkit.extensions.serving.admission import AdmissionMiddleware
from bertkit.extensions.serving.api_keys import ApiKeys, Key
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.memory_budget import Budget
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.processes import LOOPBACK
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.pipelines import Embed


def key(name: str, secret: str = "", **options: Any) -> Key:
    return Key(name=name, sha256=hashlib.sha256((secret or name).encode()).hexdigest(), **options)


KEYS = ApiKeys(
    [
        key("all", "secret"),
        key("few", routes=("/embed",), requests_per_minute=2),
        key("tokens", tokens_per_minute=10),
    ]
)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_all_routes_except_liveness_require_key(server: Server, capsys: Any) -> None:
    client = server(keys=KEYS)
    assert client.get("/health/live").json() == {"status": "live"}
    routes = [("GET", p) for p in ("/info", "/metrics", "/openapi.json", "/health/ready", "/no")]
    for method, path in [*routes, ("POST", "/embed"), ("POST", "/models/x/reload")]:
        for headers in ({}, bearer("wrong")):
            response = client.request(method, path, headers=headers, content=b"{")
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == 'Basic realm="bertkit", Bearer'
    assert client.get("/info", headers=bearer("secret")).status_code == 200
    assert client.get("/", auth=("anyone", "secret")).status_code == 200
    assert client.get("/", auth=("secret", "anyone")).status_code == 401
    assert client.get("/info", headers=bearer("few")).status_code == 403
    assert "secret" not in capsys.readouterr().err


def test_keys_have_limits_per_minute(server: Server) -> None:
    client, body = server(keys=KEYS), {"inputs": "a b c"}
    for name, message in (("few", ""), ("tokens", "limit of tokens per minute")):
        responses = [client.post("/embed", json=body, headers=bearer(name)) for _ in range(3)]
        assert [r.status_code for r in responses] == [200, 200, 429]
        assert int(responses[2].headers["retry-after"]) > 0
        assert message in responses[2].json()["error"]


def test_json_at_root_requires_access_to_its_route(server: Server) -> None:
    """The first route of the server is /embed."""
    routes = {"embed": ("/embed",), "root": ("/", "/predict")}
    client = server(keys=ApiKeys([key(name, routes=routes[name]) for name in routes]))
    for name, status in (("embed", 200), ("root", 403)):
        response = client.post("/", json={"inputs": "a"}, headers=bearer(name))
        assert response.status_code == status
    assert client.get("/", headers=bearer("embed")).status_code == 403
    assert client.get("/", headers=bearer("root")).status_code == 200


def test_log_writes_each_line_in_one_call(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers share stderr, so lines written in parts would be mixed."""
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


def test_log_omits_texts_of_requests(server: Server, capsys: Any) -> None:
    client = server()
    response = client.post("/embed", json={"inputs": ["a b", "c"]})
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line["id"] == response.headers["x-request-id"]
    logged = {"key": "anyone", "route": "/embed", "status": 200, "items": 2, "tokens": 7}
    assert {name: line[name] for name in logged} == logged
    client.post("/embed", json={"inputs": "zebra zebra", "truncate": 3})
    client.post("/fill-mask", json={"inputs": "zebra"})
    client.get("/zebra")
    assert "zebra" not in capsys.readouterr().err


def test_metrics_count_requests_and_tokens(server: Server) -> None:
    client = server()
    client.post("/embed", json={"inputs": ["a b", "c"]})
    client.get("/nowhere")
    text = client.get("/metrics").text
    assert 'bertkit_requests_total{route="/embed",status="200"} 1.0' in text
    assert 'bertkit_requests_total{route="other",status="404"} 1.0' in text
    assert 'bertkit_tokens_total{route="/embed"} 7.0' in text
    assert "bertkit_queue_tokens 0.0" in text
    assert "bertkit_batch_tokens_sum 7.0" in text


def test_loading_and_stopping_servers_return_503() -> None:
    from starlette.testclient import TestClient

    keys = ApiKeys([key("k", routes=("/embed",))])
    admission = AdmissionMiddleware(limits=Limits(), keys=keys, metrics=Metrics())
    client = TestClient(admission, headers={"authorization": "Bearer k"})
    # The route of a request at / is unknown until the models are loaded.
    assert client.post("/", json={"inputs": "a"}).status_code == 503
    response = client.get("/info")
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert response.json()["error"] == "the server is loading its models"
    assert client.get("/health/live").status_code == 200
    admission.draining, admission.app = True, object()
    assert client.get("/info").json()["error"] == "the server is stopping"


def test_readiness_fails_if_embeddings_change(server: Server, registry: ModelRegistry) -> None:
    client = server()
    assert client.get("/health/ready").json() == {"status": "ready"}
    served = registry.models["pretrained"]
    reference = served.reference
    served.reference = reference + 1.0
    response = client.get("/health/ready")
    served.reference = reference
    assert response.status_code == 503
    assert "the model pretrained computes other embeddings" in response.json()["error"]


def test_nan_and_zero_vectors_return_424(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    client = server()
    for bad in (float("nan"), float("inf"), 0.0):
        monkeypatch.setattr(Embed, "run", lambda self, works, b=bad: [[b] * 16 for _ in works])
        response = client.post("/embed", json={"inputs": "a"})
        assert response.status_code == 424
        assert json.loads(capsys.readouterr().err.splitlines()[-1])["defect"].startswith(
            "ArithmeticError at "
        )


def test_request_returns_429_after_timeout(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    run = Embed.run

    def slow(self: Embed, works: Any) -> Any:
        release.wait(5)
        return run(self, works)

    client = server(Limits(timeout=0.2))
    monkeypatch.setattr(Embed, "run", slow)
    start = time.monotonic()
    response = client.post("/embed", json={"inputs": "a"})
    assert time.monotonic() - start < 3
    release.set()
    assert response.status_code == 429
    assert "no response within 0.2 s" in response.json()["error"]
    assert response.headers["retry-after"]


def drive(
    admission: AdmissionMiddleware,
    messages: list[Any],
    headers: Any = (),
    *,
    method: str = "POST",
    query: bytes = b"",
) -> list[Any]:
    """Pass ASGI messages to an admission, and return the messages that it sends.

    After the last message, `receive` waits without end.
    """
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


class NeverResponds:
    """Application that never responds, and records its cancellation."""

    cancelled = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.Future()
        finally:
            self.cancelled = True


async def no_content(scope: Any, receive: Any, send: Any) -> None:
    """Respond with status 204."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def admission_for(app: Any, **limits: Any) -> AdmissionMiddleware:
    admission = AdmissionMiddleware(limits=Limits(**limits), keys=ApiKeys([]), metrics=Metrics())
    admission.app = app
    return admission


def test_disconnected_request_is_cancelled(capsys: Any) -> None:
    app = NeverResponds()
    admission = admission_for(app)
    sent = drive(admission, [{"type": "http.request", "body": b"{}"}, {"type": "http.disconnect"}])
    assert sent == []
    assert app.cancelled
    assert admission.open == 0
    assert json.loads(capsys.readouterr().err)["status"] == 499
    early = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    assert drive(admission, early) == []


def test_error_after_disconnect_is_not_logged() -> None:
    """The thread that reads long texts fails after the client has left."""
    started, left, logged = threading.Event(), threading.Event(), list[Any]()
    budget = Budget(1 << 30, Metrics())

    def prepare(texts: Any) -> Any:
        started.set()
        left.wait()
        raise DataError("a text of the request")

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: logged.append(error))
        context: Any = SimpleNamespace(limits=Limits(), budget=budget)
        reading = asyncio.create_task(RequestContext.read(context, ["a"], [5_000], prepare, len))
        await asyncio.to_thread(started.wait)
        reading.cancel()
        await asyncio.wait([reading])
        left.set()
        while budget.used:
            await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(leave())
    assert logged == []


def test_body_is_limited_in_size_and_time() -> None:
    part = {"type": "http.request", "body": b"x" * 60, "more_body": True}
    assert drive(admission_for(NeverResponds(), body_bytes=100), [part, part])[0]["status"] == 413
    assert drive(admission_for(NeverResponds(), body_timeout=0.05), [part])[0]["status"] == 408


@given(body=st.binary(max_size=200), length=st.sampled_from([b"x", b"-1", b"1e3"]))
def test_any_body_reaches_the_application(body: bytes, length: bytes) -> None:
    """The application returns 204 for each body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == body
        await no_content(scope, receive, send)

    message = {"type": "http.request", "body": body}
    sent = drive(admission_for(app), [message], headers=[(b"content-length", length)])
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
def test_unknown_host_header_is_rejected(host: bytes, status: int) -> None:
    admission = admission_for(no_content)
    admission.hosts = LOOPBACK
    sent = drive(admission, [{"type": "http.request", "body": b""}], headers=[(b"host", host)])
    assert sent[0]["status"] == status


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, b"text=a", 204),
        ({"sec-fetch-site": "none"}, b"text=a", 204),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, b"", 204),  # Link.
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, b"text=a", 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, b"", 403),  # Image.
        ({"sec-fetch-site": "same-site"}, b"", 403),
        ({"origin": "http://127.0.0.1:8000"}, b"", 204),
        ({"origin": "http://evil.example"}, b"", 403),
        ({"origin": "null"}, b"", 403),
    ],
)
def test_cross_site_request_is_rejected(headers: dict[str, str], query: bytes, status: int) -> None:
    headers = {"host": "127.0.0.1:8000", **headers}
    all_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = {"type": "http.request", "body": b""}
    admission = admission_for(no_content)
    sent = drive(admission, [request], headers=all_headers, method="GET", query=query)
    assert sent[0]["status"] == status
    assert (b"content-security-policy", b"frame-ancestors 'none'") in sent[0]["headers"]


def test_open_requests_are_limited() -> None:
    admission = admission_for(NeverResponds(), requests=1)
    admission.open = 1
    assert drive(admission, [{"type": "http.request", "body": b"{}"}])[0]["status"] == 429
