"""Hostile requests to a server on this machine.

Run `python -m tests.extensions.serving.hostile PORT COUNT SEED`.

The requests are malformed, too large, too slow, too heavy or abandoned, and have no key. The
command prints the number of responses per status as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

CLIENTS = 32
"""Number of concurrent connections."""

SECONDS = 20.0
"""Timeout of one request in seconds."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Attack = Callable[["Hostile"], Awaitable[bytes | None]]


class Hostile:
    """A client that sends bad requests to 127.0.0.1, chosen by a seed."""

    def __init__(self, port: int, seed: int) -> None:
        self.port, self.random = port, random.Random(seed)
        self.idle: list[Streams] = []

    async def send(self, sent: bytes, *, read: bool = True, wait: float = 0.0) -> bytes | None:
        """Send bytes on a new connection, and return the first line of the response if `read`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(wait)
            return await asyncio.wait_for(reader.readline(), SECONDS) if read else None
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def post(self, path: str, body: bytes, length: int | None = None, extra: bytes = b"") -> bytes:
        size = len(body) if length is None else length
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return head.encode() + b"content-length: %d\r\n%s\r\n" % (size, extra) + body

    def heavy(self) -> bytes:
        """Return a request that needs much computing time."""
        dots = "." * self.random.choice([3_000, 20_000, 99_999])
        words = " ".join(self.random.choices("abcdefgh", k=13))
        path, body = self.random.choice(
            [
                ("/embed", {"inputs": [dots] * 10, "truncate": True}),
                ("/embed", {"inputs": [words] * 2_000}),
                ("/tokenize", {"inputs": [dots] * 10}),
                ("/choose", {"inputs": {"text": dots, "choices": ["a"] * 20}, "truncate": True}),
                ("/ner", {"inputs": [dots]}),
                ("/fill-mask", {"inputs": ["[MASK] " * 13] * 300, "top": 100}),
                ("/explain", {"inputs": words}),
                ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [words] * 500}}),
                ("/v1/completions", {"prompt": [words] * 50, "max_tokens": 100, "n": 4}),
            ]
        )
        return self.post(path, json.dumps(body).encode())

    async def malformed(self) -> bytes | None:
        noise = self.random.randbytes(self.random.randint(1, 2_000))
        method = self.random.choice([b"GET / HTTP/1.1\r\n", b"POST /embed HTTP/9\r\n", b""])
        return await self.send(method + noise + b"\r\n\r\n")

    async def bad_json(self) -> bytes | None:
        body = self.random.choice(
            [
                b"{",
                b"[" * 100_000,
                b'{"inputs": "\\ud800"}',
                b'{"inputs": 1e999}',
                b'{"inputs": ' + b"9" * 5_000 + b"}",
                b'{"inputs": null, "inputs": []}',
                b'{"inputs": [' + b'"",' * 50_000 + b'""]}',
                self.random.randbytes(500),
                json.dumps({f"field{n}": n for n in range(2_000)}).encode(),
            ]
        )
        path = self.random.choice(["/embed", "/v1/embeddings", "/v1/chat/completions", "/rerank"])
        return await self.send(self.post(path, body))

    async def bad_path(self) -> bytes | None:
        path = self.random.choice(
            ["/../../etc/passwd", "/%00", "/models/x/reload", "//", "/é", "*"]
        )
        method = self.random.choice(["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "POST"])
        return await self.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())

    async def large_head(self) -> bytes | None:
        header = self.random.choice([b"a: b\r\n" * 5_000, b"a: " + b"b" * 100_000 + b"\r\n"])
        return await self.send(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n" + header + b"\r\n")

    async def large_body(self) -> bytes | None:
        body = b'"' + b"x" * 500_000
        return await self.send(self.post("/embed", body, self.random.choice([10**7, 10**12])))

    async def slow_body(self) -> bytes | None:
        sent = self.post("/embed", b'{"inputs"', 1_000)
        return await self.send(sent, read=False, wait=self.random.random())

    async def pipelined(self) -> bytes | None:
        live = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        return await self.send(live * self.random.randint(2, 200))

    async def smuggled(self) -> bytes | None:
        extra = b"transfer-encoding: chunked\r\n"
        return await self.send(
            self.post("/embed", b"0\r\n\r\nGET /info HTTP/1.1\r\n\r\n", 5, extra)
        )

    async def abandoned(self) -> bytes | None:
        return await self.send(self.heavy(), read=False, wait=self.random.random() * 0.2)

    async def answered(self) -> bytes | None:
        return await self.send(self.heavy())

    async def streamed(self) -> bytes | None:
        body = {"prompt": "a b", "max_tokens": 100, "stream": True, "n": 8}
        return await self.send(self.post("/v1/completions", json.dumps(body).encode()))

    async def reloaded(self) -> bytes | None:
        return await self.send(self.post("/models/entities/reload", b""), read=False)

    async def held(self) -> bytes | None:
        """Open an idle connection, and keep the last 500 connections open."""
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        streams[1].write(b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        self.idle.append(streams)
        if len(self.idle) > 500:
            self.idle.pop(0)[1].close()
        return await asyncio.wait_for(streams[0].readline(), SECONDS)


ATTACKS: list[tuple[int, Attack]] = [
    (10, Hostile.malformed),
    (10, Hostile.bad_json),
    (10, Hostile.bad_path),
    (5, Hostile.large_head),
    (2, Hostile.large_body),
    (10, Hostile.slow_body),
    (5, Hostile.pipelined),
    (5, Hostile.smuggled),
    (10, Hostile.abandoned),
    (5, Hostile.answered),
    (3, Hostile.streamed),
    (1, Hostile.reloaded),
    (10, Hostile.held),
]
"""Attacks and their sampling weights."""


async def attack(port: int, count: int, seed: int) -> Counter[str]:
    """Send `count` requests, and count their statuses or errors."""
    hostile, statuses, left = Hostile(port, seed), Counter[str](), iter(range(count))
    weights, attacks = zip(*ATTACKS, strict=True)

    async def client() -> None:
        for _ in left:
            (send_attack,) = hostile.random.choices(attacks, weights)
            try:
                line = await send_attack(hostile)
            except TimeoutError:
                statuses[f"none in {SECONDS:g} s: {send_attack.__name__}"] += 1
            except OSError:
                statuses["closed"] += 1
            else:
                part = b"not read" if line is None else [*line.split(b" "), b"closed"][1]
                statuses[part.decode("latin-1")] += 1

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    for _, writer in hostile.idle:
        writer.close()
    return statuses


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attack(*map(int, sys.argv[1:])))))
