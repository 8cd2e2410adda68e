"""API keys and rate limits."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bertkit.errors import ConfigError
from bertkit.extensions.serving import api_keys
from bertkit.extensions.serving.api_keys import ApiKeys, Key, RateLimiter, read_keys


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_api_keys_find_key_of_header() -> None:
    keys = ApiKeys([Key(name="a", sha256=digest("one")), Key(name="b", sha256=digest("two"))])
    assert keys
    for header, name in (("Bearer one", "a"), ("bearer two", "b"), ("Bearer  two ", "b")):
        key = keys.find(header.encode())
        assert key is not None
        assert key.name == name
    # The values are a:one and :one in base64.
    for header in ("Basic YTpvbmU=", "basic Om9uZQ=="):
        key = keys.find(header.encode())
        assert key is not None
        assert key.name == "a"
    for header in ("Basic one", "Basic b25lOg==", "Digest YTpvbmU=", "Basic \xff"):
        assert keys.find(header.encode("latin-1")) is None
    for header in ("", "Bearer", "Bearer ", "Bearer on", "Basic one", "one", "Bearer \xff"):
        assert keys.find(header.encode("latin-1")) is None


def test_server_without_keys_allows_all_requests() -> None:
    keys = ApiKeys([])
    assert not keys
    key = keys.find(b"")
    assert key is not None
    assert key.allows("/embed")


def test_key_allows_only_its_routes() -> None:
    keys = ApiKeys([Key(name="a", sha256=digest("one"), routes=("/embed", "/search"))])
    key = keys.find(b"Bearer one")
    assert key is not None
    assert key.allows("/embed")
    assert not key.allows("/metrics")


def test_rate_limiter_refills_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(api_keys.time, "monotonic", lambda: now)
    limiter = RateLimiter(60)
    assert [limiter.take(30), limiter.take(30)] == [0, 0]
    # The limiter refills one unit per second, and returns the seconds to wait.
    assert limiter.take(5) == 5
    now += 4.0
    assert limiter.take(5) == 1
    now += 1.0
    assert limiter.take(5) == 0
    # The limiter stores at most the units of one minute, and a request for more units needs all.
    now += 3600.0
    assert limiter.take(61) == 0
    assert limiter.take(1) == 2
    assert RateLimiter(None).take(10**9) == 0


def test_read_keys_returns_keys_of_file_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[key]]\nname = "team"\nsha256 = "{digest("k")}"\nroutes = ["/embed"]\n'
        "tokens_per_minute = 1000\n"
    )
    keys = read_keys(path, {"BERTKIT_KEY": "mine\n"})
    assert [v.name for v in keys.states] == ["team", "BERTKIT_KEY"]
    environment_key = keys.find(b"Bearer mine")
    assert environment_key is not None
    assert environment_key.allows("/metrics")
    assert not read_keys(None, {})
    assert not read_keys(None, {"BERTKIT_KEY": " "})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "keys.toml: key: this setting is required"),
        ("key = []", "keys.toml: .*key"),
        ('[[key]]\nname = "a"\nsha256 = "abc"\n', r"keys.toml: .*sha256"),
        ('[[key]]\nname = "a"\nkey = "plain"\n', "keys.toml: .*key"),
        ("[[key]", "not valid TOML"),
        (f'[[key]]\nname = "a"\nsha256 = "{"0" * 64}"\nroutes = ["embed"]\n', r"routes\[0\]"),
        (f'[[key]]\nname = "a"\nsha256 = "{"0" * 64}"\n' * 2, "key 'a' occurs twice; use another"),
    ],
)
def test_read_keys_rejects_invalid_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_keys(path, {})
