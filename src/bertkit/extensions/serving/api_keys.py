"""API keys of a server, with the routes that they allow and their rate limits."""

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

from bertkit.config import Count, Settings, decode, read_toml
from bertkit.errors import ConfigError

KEY_VARIABLE = "BERTKIT_KEY"
"""Environment variable that contains an API key for all routes."""


class Key(Settings, frozen=True):
    """An API key."""

    name: str
    """Name of the key, which appears in the log."""
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 hash of the key. To compute it, run: printf %s KEY | sha256sum."""
    routes: tuple[Annotated[str, Meta(pattern=r"^(\*|/.*)$")], ...] = ("*",)
    """Routes that the key may use, such as /embed. Default: all routes."""
    requests_per_minute: Count | None = None
    """Maximum number of requests per minute, in each worker. Default: no limit."""
    tokens_per_minute: Count | None = None
    """Maximum number of tokens per minute, in each worker. Default: no limit."""


class KeyFile(Settings, frozen=True):
    """Contents of a file of API keys."""

    key: Annotated[tuple[Key, ...], Meta(min_length=1)]


class RateLimiter:
    """A rate limiter (token bucket) whose capacity refills at a rate of `per_minute` per minute.

    Args:
        per_minute: Capacity of the bucket, or None for no limit.
    """

    def __init__(self, per_minute: int | None) -> None:
        self.per_minute, self.left, self.seen = per_minute, float(per_minute or 0), time.monotonic()

    def take(self, count: int = 1) -> int:
        """Use capacity of the bucket, or return how many seconds to wait for it.

        Args:
            count: Amount to take. An amount larger than the capacity can be taken as soon as the
                bucket is full.

        Returns:
            0 if the amount was taken. Otherwise, nothing is taken, and the result is the number of
            seconds until the amount is available.
        """
        if self.per_minute is None:
            return 0
        now = time.monotonic()
        refill = (now - self.seen) * self.per_minute / 60
        self.left, self.seen = min(self.per_minute, self.left + refill), now
        required = min(count, self.per_minute)
        if self.left < required:
            return math.ceil((required - self.left) * 60 / self.per_minute)
        self.left -= count
        return 0


class ApiKeyState:
    """An API key, together with its rate limiters."""

    def __init__(self, key: Key) -> None:
        self.key, self.name = key, key.name
        self.requests = RateLimiter(key.requests_per_minute)
        self.tokens = RateLimiter(key.tokens_per_minute)

    def allows(self, route: str) -> bool:
        return "*" in self.key.routes or route in self.key.routes


class ApiKeys:
    """All API keys of a server. If there are no keys, every request is accepted."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.states = [ApiKeyState(key) for key in keys]
        self.anyone = ApiKeyState(Key(name="anyone", sha256="0" * 64))

    def __bool__(self) -> bool:
        return bool(self.states)

    def find(self, authorization: bytes) -> ApiKeyState | None:
        """Return the state of the key in an Authorization header, or None if the key is unknown.

        Keys are compared in constant time. A browser sends the key as the password of HTTP basic
        authentication.

        Args:
            authorization: Value of the header: `Bearer KEY` or `Basic ...`.
        """
        if not self.states:
            return self.anyone
        kind, _, key = authorization.partition(b" ")
        if kind.lower() == b"basic":
            try:
                key = base64.b64decode(key, validate=True).partition(b":")[2]
            except ValueError:
                return None
        digest = hashlib.sha256(key.strip()).hexdigest()
        found = None
        for state in self.states:
            if hmac.compare_digest(digest, state.key.sha256):
                found = state
        return found if kind.lower() in (b"bearer", b"basic") else None


def read_keys(path: Path | None, environment: Mapping[str, str] = os.environ) -> ApiKeys:
    """Read the API keys from a file and from the environment.

    Args:
        path: TOML file of keys. Default: use only the key in the environment.
        environment: Environment variables.

    Raises:
        ConfigError: If the file is invalid, or a key occurs twice.
    """
    keys: list[Key] = []
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"{path}: file of API keys not found; correct or omit --keys")
        try:
            keys += decode(KeyFile, read_toml(path)).key
        except ConfigError as error:
            prefix = "" if str(error).startswith(str(path)) else f"{path}: "
            raise ConfigError(f"{prefix}{error}") from None
    secret = environment.get(KEY_VARIABLE, "").strip()
    if secret:
        digest = hashlib.sha256(secret.encode()).hexdigest()
        keys.append(Key(name=KEY_VARIABLE, sha256=digest))
    for field in ("name", "sha256"):
        values = [getattr(key, field) for key in keys]
        duplicate = next((key.name for key in keys if values.count(getattr(key, field)) > 1), None)
        if duplicate:
            raise ConfigError(
                f"{path}: {field} of key {duplicate!r} occurs twice; use another {field}"
            )
    return ApiKeys(keys)
