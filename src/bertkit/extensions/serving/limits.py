"""Limits of a server, which are checked before a request is parsed."""

from __future__ import annotations

from bertkit.config import Count, Positive, Settings


class Limits(Settings, frozen=True):
    """The limits of a server."""

    body_bytes: Count = 2 << 20
    """Maximum size of a request body in bytes."""
    text_characters: Count = 100_000
    """Maximum number of characters of a text."""
    items: Count = 2_048
    """Maximum number of texts or pairs per request."""
    queue_tokens: Count = 65_536
    """Maximum number of waiting tokens. Requests that exceed it get status 429 and Retry-After."""
    batch_tokens: Count = 4_096
    """Approximate number of tokens per batch."""
    memory_bytes: Count = 1 << 30
    """Maximum memory of all requests in bytes, without the models and the current batch."""
    requests: Count = 512
    """Maximum number of open requests."""
    timeout: Positive = 30.0
    """Timeout in seconds of a request without progress, after its body has arrived."""
    body_timeout: Positive = 10.0
    """Timeout in seconds for receiving the body of a request."""
    truncate: bool = False
    """Whether to truncate texts that are too long if the request does not set `truncate`. Pipelines
    that use overlapping windows keep them."""
