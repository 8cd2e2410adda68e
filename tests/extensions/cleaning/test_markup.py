"""Plain text of documents with HTML."""

from __future__ import annotations

import time

import pytest

from bertkit.extensions.cleaning.markup import plain_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Good.<br /><br />Bad.", "Good.\n\nBad."),
        ("Good. <BR> Bad.", "Good.\nBad."),
        ("<p>One</p>\n<p class='x'>Two</p>", "One\n\nTwo"),
        ("<ul><li>a</li><li>b</li></ul>", "a\n\nb"),
        ('I <b>like</b> <a href="x?a=1&b=2">it</a>.', "I like it."),
        ("a<!-- <p>no\n -->b<script>if (x<y) f()</script>c<style>p{}</style>d", "abcd"),
        ("AT&amp;T &quot;x&quot; &#8364; &lt;br&gt;", 'AT&T "x" € <br>'),
    ],
)
def test_plain_text_converts_html(text: str, expected: str) -> None:
    assert plain_text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a < b and b > c; List<int>, <pad>, <unk>, <brand>, <user@example.com>",
        "x  \n  y\n\n\n\nz ",
        "?a=1&copy=2&lt=3 R&D; 5 & 6",
        "<!-- open",
        "<p",
    ],
)
def test_plain_text_keeps_other_text(text: str) -> None:
    assert plain_text(text) == text


@pytest.mark.parametrize("part", ["<!--", "<script>", "<style>a", "<b ", " <br ", "<br> "])
def test_plain_text_takes_linear_time(part: str) -> None:
    start = time.perf_counter()
    plain_text(part * 100_000 + " " * 300_000)
    assert time.perf_counter() - start < 5.0
