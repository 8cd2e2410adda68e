"""Keys and allowances."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bertkit.errors import ConfigError
from bertkit.extensions.serving import limits
from bertkit.extensions.serving.limits import ApiKeys, Key, RateLimiter, read_keys


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_who_sends_a_key_is_known_by_it() -> None:
    keys = ApiKeys([Key(name="a", sha256=digest("one")), Key(name="b", sha256=digest("two"))])
    assert keys
    for header, name in (("Bearer one", "a"), ("bearer two", "b"), ("Bearer  two ", "b")):
        found = keys.find(header.encode())
        assert found is not None
        assert found.name == name
    for header in ("Basic YTpvbmU=", "basic Om9uZQ=="):  # a:one, :one
        found = keys.find(header.encode())
        assert found is not None
        assert found.name == "a"
    for header in ("Basic one", "Basic b25lOg==", "Digest YTpvbmU=", "Basic \xff"):
        assert keys.find(header.encode("latin-1")) is None
    for header in ("", "Bearer", "Bearer ", "Bearer on", "Basic one", "one", "Bearer \xff"):
        assert keys.find(header.encode("latin-1")) is None


def test_without_keys_everyone_may() -> None:
    keys = ApiKeys([])
    assert not keys
    found = keys.find(b"")
    assert found is not None
    assert found.may("/embed")


def test_routes_of_a_key() -> None:
    keys = ApiKeys([Key(name="a", sha256=digest("one"), routes=("/embed", "/search"))])
    found = keys.find(b"Bearer one")
    assert found is not None
    assert found.may("/embed")
    assert not found.may("/metrics")


def test_an_allowance_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(limits.time, "monotonic", lambda: now)
    minute = RateLimiter(60)
    assert [minute.take(30), minute.take(30)] == [0, 0]
    assert minute.take(5) == 5  # seconds: one a second
    now += 4.0
    assert minute.take(5) == 1
    now += 1.0
    assert minute.take(5) == 0
    now += 3600.0  # a minute's worth at most is kept
    assert minute.take(61) == 0  # more than a minute's share: when there is a whole one
    assert minute.take(1) == 2
    assert RateLimiter(None).take(10**9) == 0


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[key]]\nname = "team"\nsha256 = "{digest("k")}"\nroutes = ["/embed"]\n'
        "tokens_per_minute = 1000\n"
    )
    keys = read_keys(path, {"BERTKIT_KEY": "mine\n"})
    assert [v.name for v in keys.states] == ["team", "BERTKIT_KEY"]
    mine = keys.find(b"Bearer mine")
    assert mine is not None
    assert mine.may("/metrics")
    assert not read_keys(None, {})
    assert not read_keys(None, {"BERTKIT_KEY": " "})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "keys.toml: key: this setting is required"),
        ("key = []", "keys.toml: .*key"),
        ('[[key]]\nname = "a"\nsha256 = "abc"\n', r"keys.toml: .*sha256"),
        ('[[key]]\nname = "a"\nkey = "plain"\n', "keys.toml: .*key"),
        ("[[key]", "not valid TOML"),
        (f'[[key]]\nname = "a"\nsha256 = "{"0" * 64}"\nroutes = ["embed"]\n', r"routes\[0\]"),
        (
            f'[[key]]\nname = "a"\nsha256 = "{"0" * 64}"\n' * 2,
            "name of key 'a' occurs twice",
        ),
    ],
)
def test_a_file_that_is_no_list_of_keys(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_keys(path, {})
