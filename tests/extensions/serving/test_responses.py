"""Streams end completely or with an error event, and slow clients do not block the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bertkit.extensions.serving.admission import AdmissionMiddleware
from bertkit.extensions.serving.api_keys import ApiKeys
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.metrics import Metrics

TIMEOUT = 0.2

Events = Callable[[], AsyncIterator[bytes]]


def admission_for(events: Events, media_type: str = "text/event-stream") -> AdmissionMiddleware:
    async def stream(request: Any) -> Response:
        return StreamingResponse(events(), media_type=media_type)

    admission = AdmissionMiddleware(
        limits=Limits(timeout=TIMEOUT), keys=ApiKeys([]), metrics=Metrics()
    )
    admission.set_app(Starlette(routes=[Route("/v1/completions", stream)]))
    return admission


async def send_request(
    admission: AdmissionMiddleware,
    path: str = "/v1/completions",
    delay: Callable[[int], float] = lambda number: 0.0,
) -> bytes:
    """Return the body. `delay` is the time that the client needs for message number N."""
    body, numbers = bytearray(), iter(range(10_000))
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return requests.pop() if requests else await asyncio.Future()

    async def send(message: Any) -> None:
        await asyncio.sleep(delay(next(numbers)))
        body.extend(message.get("body", b""))

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
    await admission(scope, receive, send)
    return bytes(body)


def error_of(body: bytes) -> str:
    """Return the message of the last event, which must be an error."""
    last = body.decode().strip().split("\n\n")[-1]
    return str(json.loads(last.removeprefix("data: "))["error"]["message"])


async def slow_events() -> AsyncIterator[bytes]:
    for number in range(8):
        await asyncio.sleep(TIMEOUT / 3)
        yield b"data: %d\n\n" % number
    yield b"data: [DONE]\n\n"


async def stalled_events() -> AsyncIterator[bytes]:
    yield b"data: 0\n\n"
    await asyncio.Future()


async def failing_events() -> AsyncIterator[bytes]:
    yield b"data: 0\n\n"
    raise ArithmeticError("not finite")


async def fast_events() -> AsyncIterator[bytes]:
    for number in range(200):
        yield b"data: %d\n\n" % number
    yield b"data: [DONE]\n\n"


def test_slow_producer_with_fast_client_sends_all_events() -> None:
    body = asyncio.run(send_request(admission_for(slow_events)))
    assert body.count(b"data:") == 9
    assert body.endswith(b"data: [DONE]\n\n")


def test_slow_client_that_reads_gets_all_events() -> None:
    """The client needs the timeout in total, but never for 16 parts."""
    admission = admission_for(fast_events)
    body = asyncio.run(send_request(admission, delay=lambda number: TIMEOUT / 40))
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("events", "status", "sentence"),
    [
        (stalled_events, 429, "the stream had no new output for 0.2 s"),
        (failing_events, 500, "the model failed"),
    ],
)
def test_interrupted_stream_ends_with_error_event(
    events: Events, status: int, sentence: str, capsys: Any
) -> None:
    admission = admission_for(events)
    assert sentence in error_of(asyncio.run(send_request(admission)))
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line["status"] == status
    assert sentence in line["error"]
    assert admission.open == 0


def test_client_that_stops_reading_gets_error_event(capsys: Any) -> None:
    admission = admission_for(fast_events)
    body = asyncio.run(send_request(admission, delay=lambda number: 30.0 * (number == 20)))
    assert error_of(body) == "the client did not read the response for 0.2 s"
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["status"], line["error"]) == (
        408,
        "the client did not read the response for 0.2 s",
    )


@pytest.mark.parametrize("path", ["/health/live", "/v1/completions"])
def test_client_that_never_reads_is_disconnected(path: str) -> None:
    admission = admission_for(fast_events)
    # The admission rejects the request itself.
    admission.draining = True
    asyncio.run(asyncio.wait_for(send_request(admission, path, lambda number: 30.0), 5))
    assert admission.open == 0


def test_only_event_streams_get_error_event() -> None:
    body = asyncio.run(send_request(admission_for(stalled_events, "application/json")))
    assert body == b"data: 0\n\n"


def test_stream_cancelled_at_shutdown_ends_with_error_event() -> None:
    async def stop() -> bytes:
        admission, body = admission_for(stalled_events), bytearray()
        requests = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return requests.pop() if requests else await asyncio.Future()

        async def send(message: Any) -> None:
            body.extend(message.get("body", b""))

        scope = {"type": "http", "method": "GET", "query_string": b"", "headers": []}
        task = asyncio.ensure_future(admission({**scope, "path": "/v1/completions"}, receive, send))
        while b"data: 0" not in body:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return bytes(body)

    assert error_of(asyncio.run(stop())) == "the server stopped before the response was complete"
