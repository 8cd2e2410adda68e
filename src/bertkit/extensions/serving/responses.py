"""Sending of responses in parts, with measurement of the application's and client's progress."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bertkit.extensions.serving.errors import encode_error
from bertkit.web import RequestError

PART_BYTES = 64 << 10
"""Number of bytes of a response body that are sent at a time."""

PARTS_PER_TIMEOUT = 16
"""Number of parts that a client must read within the server's timeout."""


class Reply:
    """A replacement of the ASGI `send` that sends bodies in parts and measures waiting times.

    The progress of the application and of the client is measured separately, so that a slow model
    does not count as a slow client.

    Args:
        send: The ASGI `send` of the connection.
        request_id: Id of the request, for the header x-request-id.
    """

    def __init__(self, send: Any, request_id: str) -> None:
        self._send, self._id = send, request_id.encode()
        self.status = 0
        """HTTP status that was sent, or 0 if the response has not started."""
        self.complete = False
        self._is_stream = False
        self._parts = 0
        self._progress = time.monotonic()
        self._waiting: float | None = None
        self._waited = 0.0

    async def __call__(self, message: Any) -> None:
        """Send a message from the application to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message["headers"])
            self._is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
            message["headers"] = [
                *headers,
                (b"x-request-id", self._id),
                (b"x-content-type-options", b"nosniff"),
                (b"cache-control", b"no-store"),
                (b"content-security-policy", b"frame-ancestors 'none'"),
            ]
            await self._measured(message)
            return
        body = memoryview(message.get("body", b""))
        for start in range(0, max(1, len(body)), PART_BYTES):
            more = message.get("more_body", False) or start + PART_BYTES < len(body)
            self.complete = not more
            part = bytes(body[start : start + PART_BYTES])
            await self._measured({"type": "http.response.body", "body": part, "more_body": more})

    async def _measured(self, message: Any) -> None:
        """Send a message, once the client has read enough of the previous messages."""
        self._waiting = time.monotonic()
        await self._send(message)
        self._progress = time.monotonic()
        self._waited += self._progress - self._waiting
        self._waiting = None
        self._parts += 1
        if self._parts % PARTS_PER_TIMEOUT == 0:
            self._waited = 0.0

    @property
    def waits_for_client(self) -> bool:
        """Whether the response is waiting for the client rather than for the application."""
        return self._waiting is not None

    def begin(self) -> None:
        """Start to measure the application's progress, as the complete request has arrived."""
        self._progress = time.monotonic()

    def seconds_left(self, timeout: float) -> float:
        """Return how many seconds remain until the timeout.

        Args:
            timeout: Maximum number of seconds that the application or the client may take to make
                progress.
        """
        now = time.monotonic()
        if self._waiting is not None:
            return timeout - self._waited - (now - self._waiting)
        return timeout - (now - self._progress)

    async def end_stream(self, error: RequestError, path: str, timeout: float) -> None:
        """Send an error as the last event of a stream that has started.

        Args:
            error: The error.
            path: Path of the route.
            timeout: Maximum number of seconds to wait for the client.
        """
        if not self._is_stream or self.complete:
            return
        self.complete = True
        event = b"data: " + encode_error(error, path)[1] + b"\n\n"
        try:
            async with asyncio.timeout(timeout):
                await self._send({"type": "http.response.body", "body": event, "more_body": False})
        except TimeoutError:
            return
