"""Prometheus metrics of the server."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from bertkit.storage import running

WORKERS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of the folder that workers share; set before any starts."""

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 65536)


class Metrics:
    """Metrics of this process or, with a shared folder, of all workers together."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        route = ["route"]
        self.requests = counter(
            "bertkit_requests", "Replies, by route and status.", [*route, "status"]
        )
        self.seconds = histogram(
            "bertkit_request_seconds",
            "From a request's head to the end of its reply.",
            route,
            buckets=SECONDS,
        )
        self.tokens = counter("bertkit_tokens", "Tokens read, and work that costs as much.", route)
        self.queue = gauge("bertkit_queue_tokens", "Tokens that wait.")
        self.memory = gauge(
            "bertkit_memory_bytes", "Bytes of memory that requests may come to hold."
        )
        self.batch = histogram("bertkit_batch_tokens", "Tokens of a batch.", buckets=TOKENS)
        self.open = gauge("bertkit_open_requests", "Requests being answered.")

    def text(self) -> bytes:
        """In Prometheus's text format."""
        registry = self.registry
        if WORKERS_VARIABLE in os.environ:
            _forget_dead(Path(os.environ[WORKERS_VARIABLE]))
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def _forget_dead(folder: Path) -> None:
    """Take out the gauges of workers that were killed: nothing waits there any more."""
    for file in folder.glob("gauge_live*.db"):
        process = int(file.stem.rpartition("_")[2])
        if process != os.getpid() and not running(process):
            with contextlib.suppress(FileNotFoundError):  # another worker has done it
                mark_process_dead(process)  # type: ignore[no-untyped-call]
