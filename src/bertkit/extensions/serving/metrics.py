"""Prometheus metrics of a server."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from bertkit.storage import running

WORKERS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the path of the directory that workers share. It must be set before
they start."""

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 65536)


class Metrics:
    """The metrics of this process or, if there is a shared directory, of all workers together."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        route = ["route"]
        self.requests = counter(
            "bertkit_requests", "Number of responses by route and status.", [*route, "status"]
        )
        self.seconds = histogram(
            "bertkit_request_seconds",
            "Seconds from the arrival of a request's headers to the end of its response.",
            route,
            buckets=SECONDS,
        )
        self.tokens = counter("bertkit_tokens", "Processed tokens, or work of equal cost.", route)
        self.queue = gauge("bertkit_queue_tokens", "Number of waiting tokens.")
        self.memory = gauge("bertkit_memory_bytes", "Bytes of memory reserved for requests.")
        self.batch = histogram("bertkit_batch_tokens", "Tokens per batch.", buckets=TOKENS)
        self.open = gauge("bertkit_open_requests", "Number of open requests.")

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        registry = self.registry
        if WORKERS_VARIABLE in os.environ:
            _remove_dead_workers(Path(os.environ[WORKERS_VARIABLE]))
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def _remove_dead_workers(folder: Path) -> None:
    """Remove the gauges of workers that were killed, because no requests wait in them any more."""
    for file in folder.glob("gauge_live*.db"):
        process = int(file.stem.rpartition("_")[2])
        if process != os.getpid() and not running(process):
            # Another worker may have removed the file.
            with contextlib.suppress(FileNotFoundError):
                mark_process_dead(process)  # type: ignore[no-untyped-call]
