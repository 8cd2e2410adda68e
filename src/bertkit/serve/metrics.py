"""What the server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 65536)


class Metrics:
    """Of one process: with several workers, each has its own."""

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
        self.tokens = Counter("bertkit_tokens", "Tokens read.", ["route"], registry=registry)
        self.queue = Gauge("bertkit_queue_tokens", "Tokens that wait.", registry=registry)
        self.batch = Histogram(
            "bertkit_batch_tokens", "Tokens of a batch.", buckets=TOKENS, registry=registry
        )
        self.open = Gauge("bertkit_open_requests", "Requests being answered.", registry=registry)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self.registry)
