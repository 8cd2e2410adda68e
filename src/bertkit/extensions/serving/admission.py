"""Checks of requests before they are parsed: API keys, limits and timeouts.

The checks apply to all routes. This module also counts and logs the responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import traceback
import uuid
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response

from bertkit.console import write_line
from bertkit.extensions.serving.api_keys import ApiKeys, ApiKeyState
from bertkit.extensions.serving.errors import busy, encode_error, error_response, too_much
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.memory_budget import BYTES_PER_BODY_BYTE, Budget
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.request_context import request_error
from bertkit.extensions.serving.responses import Reply
from bertkit.web import RequestError

LIVENESS_ROUTE = "/health/live"
"""Route that needs no API key."""

JSON = re.compile(r"application/([^/;]+\+)?json\s*(;|$)", re.IGNORECASE)
"""Content types that are accepted for a request body."""

ROOT_ROUTES = ("/embed", "/predict", "/rerank")
"""The first of these routes that the server supports also handles JSON requests to /, as in TEI."""

STOPPED = RequestError(503, "the server stopped before the response was complete")


class AdmissionMiddleware:
    """An ASGI middleware that checks each request before it passes the request to the application.

    The attribute `app` is None until the models are loaded.

    Args:
        limits: Limits of the server.
        keys: API keys of the server.
        metrics: Metrics of the server.
        hosts: Values of the Host header to accept. This protects a server without API keys from DNS
            rebinding. Default: accept all values.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        keys: ApiKeys,
        metrics: Metrics,
        hosts: Collection[str] | None = None,
    ) -> None:
        self.limits, self.keys, self.metrics, self.hosts = limits, keys, metrics, hosts
        self.budget = Budget(limits.memory_bytes, metrics)
        self.app: Any = None
        self.routes: frozenset[str] = frozenset()
        self.draining = False
        self.open = 0

    def set_app(self, app: Starlette) -> None:
        """Set the application to pass requests to from now on."""
        self.routes = frozenset(getattr(route, "path", "") for route in app.routes) | {
            LIVENESS_ROUTE
        }
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        start, headers = time.perf_counter(), dict(scope["headers"])
        state: dict[str, Any] = {"id": uuid.uuid4().hex[:16], "who": None, "items": 0, "tokens": 0}
        state |= {"budget": self.budget, "held": 0}
        scope["state"] = state
        self.open += 1
        self.metrics.open.set(self.open)
        reply, status = Reply(send, state["id"]), 499
        try:
            await self._admit(scope, headers, receive, reply)
            status = reply.status
        except RequestError as error:
            status = await self._fail(error, scope, receive, reply)
        except _Disconnected:
            # The request is logged with status 499.
            pass
        except asyncio.CancelledError:
            # The server is stopping, and the time for finishing open requests is over.
            status = await self._fail(STOPPED, scope, receive, reply)
            raise
        except Exception as error:
            # This is a bug in the server or the model. The log must not contain text from the
            # request.
            state["defect"] = f"{type(error).__name__} at {_error_line(error)}"
            status = await self._fail(request_error(error), scope, receive, reply)
        finally:
            self.open -= 1
            self.metrics.open.set(self.open)
            self.budget.give(state["held"])
            self._log(scope, state, status, time.perf_counter() - start)

    async def _fail(self, error: RequestError, scope: Any, receive: Any, reply: Reply) -> int:
        """Send an error as the response or, if a stream has started, as its last event.

        Returns:
            The HTTP status to log.
        """
        path = scope["path"]
        if reply.status == 0:
            await self._send_short(error_response(error, path), scope, receive, reply)
        else:
            scope["state"]["error"] = error.message
            await reply.end_stream(error, path, self.limits.timeout)
        return encode_error(error, path)[0]

    async def _send_short(self, response: Response, scope: Any, receive: Any, reply: Reply) -> None:
        """Send a response that needs no model. Give up if the client does not read it in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.timeout):
                await response(scope, receive, reply)

    async def _admit(
        self, scope: Any, headers: dict[bytes, bytes], receive: Any, reply: Reply
    ) -> None:
        kind = headers.get(b"content-type", b"").decode("latin-1")
        if (scope["path"], scope["method"]) == ("/", "POST") and JSON.match(kind):
            scope["path"] = next((path for path in ROOT_ROUTES if path in self.routes), "/")
        path = scope["path"]
        if path == LIVENESS_ROUTE:
            live = Response(b'{"status":"live"}', media_type="application/json")
            await self._send_short(live, scope, receive, reply)
            return
        who = self._check_access(scope, headers)
        scope["state"] |= {"who": who, "client": (who.name, str(scope.get("client")))}
        if self.app is None or self.draining:
            state = "loading its models" if self.app is None else "stopping"
            retry = {"retry-after": "2"}
            raise RequestError(503, f"the server is {state}", headers=retry)
        if not who.allows(path):
            raise RequestError(403, f"the API key has no access to {path[:80]}")
        if self.open > self.limits.requests:
            raise busy(
                1, f"the server already has {self.limits.requests} open requests, the maximum"
            )
        wait = who.requests.take()
        if wait:
            raise busy(wait, f"the key reached its limit of requests per minute; retry in {wait} s")
        body = await self._body(headers, receive, scope["state"])
        await self._run(scope, body, receive, reply)

    def _check_access(self, scope: Any, headers: dict[bytes, bytes]) -> ApiKeyState:
        """Check the API key, host and origin of a request, and return the state of its key."""
        who = self.keys.find(headers.get(b"authorization", b""))
        if who is None:
            message = "missing or unknown API key; send the header Authorization: Bearer KEY"
            challenge = {"www-authenticate": 'Basic realm="bertkit", Bearer'}
            raise RequestError(401, message, headers=challenge)
        host = headers.get(b"host", b"").decode("latin-1").rpartition(":")
        if self.hosts is not None and (host[0] or host[2]) not in self.hosts:
            message = f"unexpected Host header {host[0][:80]!r}; use the address of the server"
            raise RequestError(403, message)
        if _is_cross_site(headers) and not _is_plain_link(scope, headers):
            raise RequestError(403, "requests from pages of other sites are rejected")
        return who

    async def _body(
        self, headers: dict[bytes, bytes], receive: Any, state: dict[str, Any]
    ) -> bytes:
        """Receive the complete request body.

        Raises:
            RequestError: If the body is too long, or arrives too slowly.
        """
        limit = self.limits.body_bytes
        long = too_much(f"the request body is longer than {limit:,} bytes; send a smaller request")
        with contextlib.suppress(ValueError):
            if int(headers.get(b"content-length", b"0")) > limit:
                raise long
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Disconnected
                    part = message.get("body", b"")
                    if len(body) + len(part) > limit:
                        raise long
                    self.budget.take(BYTES_PER_BODY_BYTE * len(part))
                    state["held"] += BYTES_PER_BODY_BYTE * len(part)
                    body += part
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            message = f"the request body did not arrive within {self.limits.body_timeout:g} s"
            raise RequestError(408, message) from None

    async def _run(self, scope: Any, body: bytes, receive: Any, reply: Reply) -> None:
        """Run the application as long as the client is connected and both make progress.

        Raises:
            RequestError: If the application or the client makes no progress for `timeout` seconds.
        """
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return waiting.pop() if waiting else await asyncio.Future()

        async def disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        reply.begin()
        answer = asyncio.ensure_future(self.app(scope, replay, reply))
        closed = asyncio.ensure_future(disconnect())
        try:
            done: set[Any] = set()
            while not done:
                seconds = reply.seconds_left(self.limits.timeout)
                if seconds <= 0:
                    raise self._timeout_error(reply)
                done, _ = await asyncio.wait(
                    (answer, closed), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
            if closed in done and not reply.complete:
                raise _Disconnected
            await answer
        finally:
            for task in (answer, closed):
                task.cancel()
            await asyncio.gather(answer, closed, return_exceptions=True)

    def _timeout_error(self, reply: Reply) -> RequestError:
        seconds = f"{self.limits.timeout:g} s"
        if reply.waits_for_client:
            return RequestError(408, f"the client did not read the response for {seconds}")
        if reply.status == 0:
            return busy(5, f"no response within {seconds} because of other requests; try again")
        return busy(5, f"the stream had no new output for {seconds}; try again")

    def _log(self, scope: Any, state: dict[str, Any], status: int, seconds: float) -> None:
        path = scope["path"]
        route = path if path in self.routes else "other"
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        self.metrics.tokens.labels(route).inc(state["tokens"])
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": state["id"],
            "key": None if state["who"] is None else state["who"].name,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "items": state["items"],
            "tokens": state["tokens"],
        }
        line |= {name: state[name] for name in ("error", "defect") if name in state}
        write_line(msgspec.json.encode(line).decode())


def _error_line(error: Exception) -> str:
    """Return the file and line at which an exception was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


def _is_cross_site(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a page of another site sent the request, which only browsers report."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    return origin is not None and origin.rpartition(b"//")[2] != host


def _is_plain_link(scope: Any, headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the request results from a user following a link without query parameters."""
    bare = scope["method"] == "GET" and not scope["query_string"]
    return bare and headers.get(b"sec-fetch-mode") == b"navigate"


class _Disconnected(Exception):
    """The client closed the connection."""


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
