"""A head without an end ends the connection; a server that stops does not, before its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from bertkit.serve import connection
from bertkit.serve.connection import HEAD_BYTES, Connection

HEAD = b"POST / HTTP/1.1\r\nhost: here\r\n"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with the length of the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    length = str(len(body)).encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(len(length)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": length})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """A server of such connections, and its port; it is told to stop at the end."""
    config = uvicorn.Config(echo, port=0, http=Connection, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


def talk(client: Talk) -> bytes:
    """What a client is told."""

    async def both() -> bytes:
        async with serving() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return await asyncio.wait_for(client(reader, writer), 30)
            finally:
                writer.close()

    return asyncio.run(both())


def test_a_head_and_a_long_body_are_read() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        found = b""
        for _ in range(2):  # on one connection
            writer.write(HEAD + b"content-length: 1000000\r\n\r\n" + b"x" * 1_000_000)
            found += await reader.readuntil(b"1000000")
        return found

    assert talk(client).count(b"200 OK") == 2


@pytest.mark.parametrize("part", [b"a: b\r\n", b"a"])
def test_a_head_without_an_end_is_refused(part: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(HEAD + b"long: " + part * (HEAD_BYTES // len(part)))
        return await reader.read()

    assert talk(client).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD])
def test_a_head_that_does_not_come_is_not_waited_for(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(sent)
        return await reader.read()

    assert talk(client) == b""


async def connections_to_a_server_that_stops(sent: bytes) -> list[bytes]:
    """What two connections that had asked nothing read: one then sends a request, one is silent."""
    async with serving() as (server, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        while len(server.server_state.connections) < 2:
            await asyncio.sleep(0.01)
        server.should_exit = True
        while server.servers[0].is_serving():
            await asyncio.sleep(0.01)
        opened[0][1].write(sent)
        try:
            return [await asyncio.wait_for(reader.read(), 10) for reader, _ in opened]
        finally:
            for _, writer in opened:
                writer.close()


def test_the_first_request_of_a_connection_is_answered_by_a_server_that_stops() -> None:
    sent = HEAD + b"content-length: 3\r\n\r\nabc"
    asked, silent = asyncio.run(connections_to_a_server_that_stops(sent))
    assert asked.startswith(b"HTTP/1.1 200 OK")
    assert asked.endswith(b"3")
    assert b"connection: close" in asked.lower()
    assert silent == b""
