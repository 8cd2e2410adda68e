"""What the server counts, for Prometheus."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

TOGETHER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment's name for a folder in which several processes count; set before any starts."""

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 65536)


class Metrics:
    """Of this process or, where they count in a folder, of all workers together."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "bertkit_requests",
            "Replies, by route and status.",
            ["route", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "bertkit_request_seconds",
            "From a request's head to the end of its reply.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.tokens = Counter(
            "bertkit_tokens",
            "Tokens read, and work that costs as much.",
            ["route"],
            registry=registry,
        )
        self.queue = Gauge(
            "bertkit_queue_tokens",
            "Tokens that wait.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.memory = Gauge(
            "bertkit_memory_bytes",
            "Bytes of memory that requests may come to hold.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.batch = Histogram(
            "bertkit_batch_tokens", "Tokens of a batch.", buckets=TOKENS, registry=registry
        )
        self.open = Gauge(
            "bertkit_open_requests",
            "Requests being answered.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def text(self) -> bytes:
        """In Prometheus's text format."""
        registry = self.registry
        if TOGETHER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
