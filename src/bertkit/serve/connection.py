"""A connection that bounds the head of a request, and is not closed before its first one."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 << 10
"""Limit of a request's line and headers; the last read may exceed it."""

HEAD_SECONDS = 10.0
"""That they may take to arrive."""

LAST_SECONDS = 1.0
"""That a server which stops waits for the request of a connection that has asked nothing yet."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with a timeout and a size limit for request heads.

    uvicorn has no setting for either: it times idle connections only between requests, and bounds
    the head of its slower parser alone. Without this a few hundred open sockets, or one endless
    header, hold a server that no proxy stands before. And where a server stops, uvicorn closes a
    connection whose first request is still on its way: a client that came a moment before it was
    told would be sent away without a word, while the next worker takes over. The methods are those
    of asyncio's protocols and of httptools' callbacks; tests/serve/test_connection.py holds them
    against a real server.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._read = 0
        self._late: asyncio.TimerHandle | None = None  # while a head is awaited
        self._asked = False  # whether a head was read
        self._last = False  # whether the server stops after this request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head(HEAD_SECONDS)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._late is not None:
            self._read += len(data)
            if self._read > HEAD_BYTES:
                self.transport.write(TOO_LARGE)
                self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop()
        self._asked = True
        super().on_headers_complete()
        if self._last:
            super().shutdown()

    def shutdown(self) -> None:
        if self._asked or self._last:
            super().shutdown()
        else:
            self._last = True
            self._await_head(LAST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _await_head(self, seconds: float) -> None:
        self._stop()
        self._read = 0
        self._late = self.loop.call_later(seconds, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
