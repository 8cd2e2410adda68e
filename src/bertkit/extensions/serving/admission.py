"""Admission of requests, before anything is parsed: keys, limits and timeouts of every route.

Replies are counted and logged here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
import uuid
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response

from bertkit.console import write_line
from bertkit.extensions.serving.errors import DEFECT, busy, error_response, too_much
from bertkit.extensions.serving.limits import ApiKeys, ApiKeyState, Limits
from bertkit.extensions.serving.memory_budget import BYTES_PER_BODY_BYTE, Budget
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.responses import Reply
from bertkit.web import RequestError

LIVENESS_ROUTE = "/health/live"
"""The one route that is open to everyone."""

STOPPED = RequestError(503, "unavailable", "the server stopped before the answer was complete")


class AdmissionMiddleware:
    """An ASGI application around `app`, which is None until the models are loaded.

    `hosts` are the accepted Host headers; they protect a server without keys from DNS rebinding.
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

    def open_to(self, app: Starlette) -> None:
        """Let requests through to an application."""
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
            await self._admitted(scope, headers, receive, reply)
            status = reply.status
        except RequestError as refused:
            status = await self._fail(refused, scope, receive, reply)
        except _Gone:
            pass  # logged as 499
        except asyncio.CancelledError:  # the time to drain is over
            status = await self._fail(STOPPED, scope, receive, reply)
            raise
        except Exception as error:  # a defect of the server or the model; logs contain no text
            state["defect"] = f"{type(error).__name__} at {_place(error)}"
            status = await self._fail(DEFECT, scope, receive, reply)
        finally:
            self.open -= 1
            self.metrics.open.set(self.open)
            self.budget.give(state["held"])
            self._note(scope, state, status, time.perf_counter() - start)

    async def _fail(self, error: RequestError, scope: Any, receive: Any, reply: Reply) -> int:
        """Send an error as the response or, if it has started, as the last event of a stream.

        Returns: the status for the log.
        """
        if reply.status == 0:
            response = error_response(error, scope["path"])
            await self._send_short(response, scope, receive, reply)
            return error.status
        scope["state"]["error"] = error.message
        await reply.end_stream(error, scope["path"], self.limits.timeout)
        return error.status

    async def _send_short(self, response: Response, scope: Any, receive: Any, reply: Reply) -> None:
        """Send a response that no model computes. A client that does not read it is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.timeout):
                await response(scope, receive, reply)

    async def _admitted(
        self, scope: Any, headers: dict[bytes, bytes], receive: Any, reply: Reply
    ) -> None:
        path = scope["path"]
        if path == LIVENESS_ROUTE:
            live = Response(b'{"status":"live"}', media_type="application/json")
            await self._send_short(live, scope, receive, reply)
            return
        who = self._visitor(scope, headers)
        scope["state"] |= {"who": who, "client": (who.name, str(scope.get("client")))}
        if self.app is None or self.draining:
            doing = "loading its models" if self.app is None else "stopping"
            again = {"retry-after": "2"}
            raise RequestError(503, "unavailable", f"the server is {doing}", headers=again)
        if self.open > self.limits.requests:
            raise busy(1, f"{self.limits.requests} requests are open, the most there may be")
        wait = who.requests.take()
        if wait:
            raise busy(wait, f"this key has had its requests of a minute; again in {wait} s")
        body = await self._body(headers, receive, scope["state"])
        await self._run(scope, body, receive, reply)

    def _visitor(self, scope: Any, headers: dict[bytes, bytes]) -> ApiKeyState:
        path: str = scope["path"]
        who = self.keys.find(headers.get(b"authorization", b""))
        if who is None:
            message = "no key, or one that is not known; send the header Authorization: Bearer KEY"
            challenge = {"www-authenticate": 'Basic realm="bertkit", Bearer'}
            raise RequestError(401, "unauthorized", message, headers=challenge)
        host = headers.get(b"host", b"").decode("latin-1").rpartition(":")
        if self.hosts is not None and (host[0] or host[2]) not in self.hosts:
            message = f"asked as {host[0][:80]!r}; ask by the server's address"
            raise RequestError(403, "forbidden", message)
        if _from_elsewhere(headers) and not _followed(scope, headers):
            raise RequestError(403, "forbidden", "asked by a page of another site, which may not")
        if not who.may(path):
            raise RequestError(403, "forbidden", f"this key is not for {path[:80]}")
        return who

    async def _body(
        self, headers: dict[bytes, bytes], receive: Any, state: dict[str, Any]
    ) -> bytes:
        """The whole body. Raises: RequestError when it is too long, or takes too long."""
        most = self.limits.body_bytes
        long = too_much(f"the body is longer than {most:,} bytes; send less at once")
        with contextlib.suppress(ValueError):
            if int(headers.get(b"content-length", b"0")) > most:
                raise long
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    part = message.get("body", b"")
                    if len(body) + len(part) > most:
                        raise long
                    self.budget.take(BYTES_PER_BODY_BYTE * len(part))
                    state["held"] += BYTES_PER_BODY_BYTE * len(part)
                    body += part
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            message = f"the body took longer than {self.limits.body_timeout:g} s to arrive"
            raise RequestError(408, "timeout", message) from None

    async def _run(self, scope: Any, body: bytes, receive: Any, reply: Reply) -> None:
        """Run the application while the client is connected and both make progress.

        Raises:
            RequestError: If one of them makes no progress for `timeout` seconds.
        """
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return waiting.pop() if waiting else await asyncio.Future()

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        reply.begin()
        answer = asyncio.ensure_future(self.app(scope, replay, reply))
        left = asyncio.ensure_future(gone())
        try:
            done: set[Any] = set()
            while not done:
                seconds = reply.seconds_left(self.limits.timeout)
                if seconds <= 0:
                    raise self._late(reply)
                done, _ = await asyncio.wait(
                    (answer, left), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
            if left in done and not reply.complete:
                raise _Gone
            await answer
        finally:
            for task in (answer, left):
                task.cancel()
            await asyncio.gather(answer, left, return_exceptions=True)

    def _late(self, reply: Reply) -> RequestError:
        seconds = f"{self.limits.timeout:g} s"
        if reply.waits_for_client:
            return RequestError(408, "timeout", f"the client did not read for {seconds}")
        if reply.status == 0:
            return busy(5, f"no answer within {seconds}, for others are before; try again")
        return busy(5, f"the stream had no new output for {seconds}; try again")

    def _note(self, scope: Any, state: dict[str, Any], status: int, seconds: float) -> None:
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


def _place(error: Exception) -> str:
    """The innermost line of a traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


def _from_elsewhere(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser asks for a page of another site; other programs say neither."""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    return origin is not None and origin.rpartition(b"//")[2] != host


def _followed(scope: Any, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a link was followed that brings no words for a model."""
    bare = scope["method"] == "GET" and not scope["query_string"]
    return bare and headers.get(b"sec-fetch-mode") == b"navigate"


class _Gone(Exception):
    """The client went away."""


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
