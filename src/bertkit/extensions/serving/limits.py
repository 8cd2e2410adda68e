"""Limits and API keys, which are checked before anything is parsed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from bertkit.config import Count, Positive, Settings, decode, read_toml
from bertkit.errors import ConfigError

KEY_VARIABLE = "BERTKIT_KEY"
"""The environment variable of a key to all routes."""


class Limits(Settings, frozen=True):
    """The limits of a server."""

    body_bytes: Count = 2 << 20
    """Bytes of a request's body."""
    text_characters: Count = 100_000
    """Characters of one text."""
    items: Count = 2_048
    """Texts, or pairs, of one request."""
    queue_tokens: Count = 65_536
    """Tokens that may wait; a request for which there is no room is told when to come again."""
    batch_tokens: Count = 4_096
    """Tokens that go through a model together."""
    memory_bytes: Count = 1 << 30
    """Bytes that requests may hold together, beside the models and the batch that one computes."""
    requests: Count = 512
    """Requests that are open at once."""
    timeout: Positive = 30.0
    """Seconds a request may take, from the end of its body."""
    body_timeout: Positive = 10.0
    """Seconds a body may take to arrive."""
    truncate: bool = False
    """Truncate texts longer than the model, where a request does not say; what reads them in
    windows still does."""


class Key(Settings, frozen=True):
    """An API key."""

    name: str
    """For the log."""
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """The hash of the key: printf %s KEY | sha256sum."""
    routes: tuple[Annotated[str, Meta(pattern=r"^(\*|/.*)$")], ...] = ("*",)
    """Routes that are open to it, such as /embed; all by default."""
    requests_per_minute: Count | None = None
    """As many at most, by each worker."""
    tokens_per_minute: Count | None = None
    """As many at most, by each worker."""


class KeyFile(Settings, frozen=True):
    key: Annotated[tuple[Key, ...], Meta(min_length=1)]


class RateLimiter:
    """A token bucket of `per_minute`, full after a minute's rest; None is no limit."""

    def __init__(self, per_minute: int | None) -> None:
        self.per_minute, self.left, self.seen = per_minute, float(per_minute or 0), time.monotonic()

    def take(self, count: int = 1) -> int:
        """0 when they are taken; else the seconds until there are enough, and none is taken.

        More than a minute's share is taken when the bucket is full.
        """
        if self.per_minute is None:
            return 0
        now = time.monotonic()
        gained = (now - self.seen) * self.per_minute / 60
        self.left, self.seen = min(self.per_minute, self.left + gained), now
        wanted = min(count, self.per_minute)
        if self.left < wanted:
            return math.ceil((wanted - self.left) * 60 / self.per_minute)
        self.left -= count
        return 0


class ApiKeyState:
    """A key and its rate limiters."""

    def __init__(self, key: Key) -> None:
        self.key, self.name = key, key.name
        self.requests = RateLimiter(key.requests_per_minute)
        self.tokens = RateLimiter(key.tokens_per_minute)

    def may(self, route: str) -> bool:
        return "*" in self.key.routes or route in self.key.routes


class ApiKeys:
    """All keys of a server; without any, everyone is admitted."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.visitors = [ApiKeyState(key) for key in keys]
        self.anyone = ApiKeyState(Key(name="anyone", sha256="0" * 64))

    def __bool__(self) -> bool:
        return bool(self.visitors)

    def find(self, authorization: bytes) -> ApiKeyState | None:
        """The key of this header, `Bearer KEY`, in constant time.

        Browsers, which ask for a name and a password, send the key as the password.
        """
        if not self.visitors:
            return self.anyone
        kind, _, key = authorization.partition(b" ")
        if kind.lower() == b"basic":
            try:
                key = base64.b64decode(key, validate=True).partition(b":")[2]
            except ValueError:
                return None
        digest = hashlib.sha256(key.strip()).hexdigest()
        known = None
        for visitor in self.visitors:
            if hmac.compare_digest(digest, visitor.key.sha256):
                known = visitor
        return known if kind.lower() in (b"bearer", b"basic") else None


def read_keys(path: Path | None, environment: Mapping[str, str] = os.environ) -> ApiKeys:
    """The keys of a file, and that of the environment.

    Raises: ConfigError for a file that is no list of keys, or names one twice.
    """
    keys: list[Key] = []
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file of keys; give one, or leave --keys out")
        try:
            keys += decode(KeyFile, read_toml(path)).key
        except ConfigError as error:
            where = "" if str(error).startswith(str(path)) else f"{path}: "
            raise ConfigError(f"{where}{error}") from None
    secret = environment.get(KEY_VARIABLE, "").strip()
    if secret:
        digest = hashlib.sha256(secret.encode()).hexdigest()
        keys.append(Key(name=KEY_VARIABLE, sha256=digest))
    for what in ("name", "sha256"):
        seen = [getattr(key, what) for key in keys]
        twice = next((key.name for key in keys if seen.count(getattr(key, what)) > 1), None)
        if twice:
            raise ConfigError(f"{path}: {what} of key {twice!r} is there twice; give each its own")
    return ApiKeys(keys)
