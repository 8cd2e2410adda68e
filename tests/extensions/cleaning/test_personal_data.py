"""Masking of mail and IP addresses."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.extensions.cleaning.personal_data import IP, MAIL, mask

OTHER = st.text(st.characters(exclude_characters="@0123456789", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(OTHER, st.sampled_from(["a.b@c.de", "8.8.8.8", "10.0.0.1"])), max_size=5))
def test_mask_changes_only_addresses(parts: list[tuple[str, str]]) -> None:
    replaced = {"a.b@c.de": MAIL, "8.8.8.8": IP, "10.0.0.1": "10.0.0.1"}
    text = "".join(f"{other} <{address}> " for other, address in parts)
    masked = "".join(f"{other} <{replaced[address]}> " for other, address in parts)
    counts = [sum(a == target for _, a in parts) for target in ("a.b@c.de", "8.8.8.8")]
    assert mask(text) == (masked, *counts)
    assert mask(masked)[0] == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("联系jane.doe@example.net谢谢", f"联系{MAIL}谢谢"),
        ("メールはinfo@example.co.jpまで", f"メールは{MAIL}まで"),
        ("Schreib an jörg.müller@bücher.de!", f"Schreib an {MAIL}!"),
        ("пишите:jane@example.net.", f"пишите:{MAIL}."),
        ("_a@b.de, (x+y@b.de) <!a@b.de>", f"{MAIL}, ({MAIL}) <!{MAIL}>"),
    ],
)
def test_mask_finds_addresses_in_any_script(text: str, masked: str) -> None:
    assert mask(text)[0] == masked


@pytest.mark.parametrize(
    "text",
    ["version 1.2.3.4.5", "256.1.1.1", "8.8.8.8888", "1.1.1", "a@b", "@name.de", "x @ y.de",
     "192.168.1.1", "127.0.0.1", "08.8.8.8"],
)  # fmt: skip
def test_mask_keeps_similar_text(text: str) -> None:
    assert mask(text) == (text, 0, 0)


@pytest.mark.parametrize("text", ["a." * 100_000 + "@", "a" * 200_000 + "@", "1." * 100_000 + "@"])
def test_mask_takes_linear_time(text: str) -> None:
    start = time.process_time()
    assert mask(text) == (text, 0, 0)
    assert time.process_time() - start < 2.0
