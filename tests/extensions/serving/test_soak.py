"""What requests within all limits take of a real server's memory, and that it stays bounded."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.extensions.serving.test_processes import process

from bertkit.extensions.serving.client import Client

MOST = 420 << 20
"""Bytes that requests may hold: one of those below at a time, or several smaller ones."""

MARKS = "." * 99_999
"""A piece, and a word, for each character."""

HEAVY: list[tuple[str, Any]] = [
    ("/choose", {"text": MARKS, "choices": ["a", "b"]}),
    ("/choose", {"text": MARKS, "choices": ["a"] * 24}),
    ("/embed", [MARKS] * 20),
    ("/tokenize", [MARKS] * 20),
    ("/ner", [MARKS] * 20),
    ("/tokenize", ["." * 3_000] * 20),
    ("/embed", ["a"] * 2_048),
]

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def resident(pid: int, what: str = "VmHWM") -> int:
    """Bytes of a process: the most there were, or those there are (VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) << 10
    raise AssertionError(f"{what} is not in /proc/{pid}/status")


@contextmanager
def attacked(address: str, clients: int = 4) -> Iterator[Counter[int]]:
    """The statuses of heavy requests, sent until the end."""
    end, statuses = threading.Event(), Counter[int]()

    def one(number: int) -> None:
        gone = contextlib.suppress(httpx.TransportError)  # the server, in the control
        with gone, httpx.Client(base_url=address, timeout=60) as client:
            while not end.is_set():
                path, inputs = HEAVY[number % len(HEAVY)]
                asked = {
                    "inputs": inputs,
                    **({"truncate": True} if path in ("/embed", "/choose") else {}),
                }
                statuses[client.post(path, json=asked).status_code] += 1
                number += 1

    threads = [threading.Thread(target=one, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("seconds", [5, pytest.param(30, marks=pytest.mark.slow)])
def test_memory_stays_below_its_bound(folders: Path, seconds: float) -> None:
    kinds = [str(folders / name) for name in ("pretrained", "entities", "ending")]
    with process(*kinds, "--memory-bytes", str(MOST)) as (running, address):
        with Client(address) as client:
            assert client.embed("a b").shape == (1, 16)
            idle = resident(running.pid, "VmRSS")
            with attacked(address) as statuses:
                time.sleep(seconds)
            assert resident(running.pid) - idle < MOST
            assert set(statuses) <= {200, 413, 429}
            assert client.embed("a b").shape == (1, 16)
            end = time.monotonic() + 10  # a reply is read before the server has put it down
            while "bertkit_memory_bytes 0.0" not in (told := httpx.get(f"{address}/metrics").text):
                assert time.monotonic() < end, told
        time.sleep(1)
        assert resident(running.pid, "VmRSS") - idle < MOST / 2  # it is given back


def test_memory_that_is_not_counted_grows(folders: Path) -> None:
    """The control: the same requests, and a bound that none of them meets."""
    kinds = [str(folders / name) for name in ("pretrained", "entities", "ending")]
    with process(*kinds, "--memory-bytes", str(1 << 50)) as (running, address):
        idle = resident(running.pid, "VmRSS")
        end = time.monotonic() + 60
        with attacked(address):
            while resident(running.pid) - idle < MOST:
                assert time.monotonic() < end
                time.sleep(0.05)
            running.kill()
