"""Limits of a server on requests and memory."""

from __future__ import annotations

from bertkit.config import Count, Positive, Settings


class Limits(Settings, frozen=True):
    """The limits of a server."""

    body_bytes: Count = 2 << 20
    """Maximum size of a request body in bytes."""
    text_characters: Count = 100_000
    """Maximum number of characters in a text."""
    items: Count = 2_048
    """Maximum number of texts or pairs in a request."""
    queue_tokens: Count = 65_536
    """Maximum number of tokens that wait in the queue. Requests that do not fit get status 429 and
    the header Retry-After."""
    batch_tokens: Count = 4_096
    """Approximate number of tokens in a batch."""
    memory_bytes: Count = 1 << 30
    """Maximum memory in bytes for all requests together. The memory of the models and the current
    batch is not included."""
    requests: Count = 512
    """Maximum number of requests that are open at the same time."""
    timeout: Positive = 30.0
    """Time in seconds after which a request is ended if it makes no progress. It is measured once
    the body has arrived."""
    body_timeout: Positive = 10.0
    """Time in seconds within which the body of a request must arrive."""
    truncate: bool = False
    """Whether to truncate texts that are too long, for requests that do not set `truncate`.
    Pipelines that use overlapping windows still do so."""
