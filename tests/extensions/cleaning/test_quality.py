"""Rules of the Gopher and C4 filters, each with a document that breaks only that rule."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.sentences import split
from bertkit.extensions.cleaning.quality import c4, gopher_quality, gopher_repetition, words_of


@pytest.fixture(scope="module")
def good() -> str:
    """Return 40 sentences of different words, five per line."""
    chance = random.Random(0)

    def noun() -> str:
        return "".join(chance.choices("bdfgklmnprst", k=6))

    sentences = [f"The {noun()} of {noun()} and {noun()} went to {noun()}." for _ in range(40)]
    return "\n".join(" ".join(sentences[i : i + 5]) for i in range(0, 40, 5))


def quality(text: str) -> str | None:
    return gopher_quality(text, words_of(text))


def repetition(text: str) -> str | None:
    return gopher_repetition(text, words_of(text))


def test_filters_keep_prose_unchanged(good: str) -> None:
    assert quality(good) is None
    assert repetition(good) is None
    assert c4(good, split) == (good, None)


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("short", lambda good: good[:200]),
        ("long", lambda good: good * 300),
        ("short-words", lambda good: good + " a b" * 500),
        ("long-words", lambda good: re.sub(r"(\w{6})", r"\1\1\1\1", good)),
        ("hashes", lambda good: good.replace(" ", " #")),
        ("ellipses", lambda good: good.replace(" ", " ... ")),
        ("bullets", lambda good: "• " + good.replace("\n", "\n - ")),
        ("ellipsis-lines", lambda good: good.replace(".\n", "…\n")),
        ("letters", lambda good: good + " 1984" * 200),
        ("stop-words", lambda good: re.sub("of|to|and", "von", good)),
    ],
)  # fmt: skip
def test_gopher_quality_reports_broken_rule(
    rule: str, spoil: Callable[[str], str], good: str
) -> None:
    assert quality(spoil(good)) == rule


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("empty", ""),
        ("paragraphs", "one\n\none\n\none\n\ntwo"),
        ("paragraph-characters", "a\n\nb\n\nc\n\nd\n\nlonger ones count\n\nlonger ones count"),
        ("lines", "\n\n".join(f"{i}\nsame\nsame" for i in range(9))),
        ("line-characters", "a\nb\nc\nd\nlonger ones count\nlonger ones count"),
        ("top-2-gram", "go on " * 9 + "and then end this with words that are not there yet"),
        ("top-3-gram", "we go on, " * 9 + "and then end this with many words that are not there "
         "yet, of which a few more are needed so that two alone are too few of all of these here"
         " and now"),
    ],
)  # fmt: skip
def test_gopher_repetition_reports_broken_rule(rule: str, text: str) -> None:
    assert repetition(text) == rule


@pytest.mark.parametrize("n", [5, 7, 10])
def test_gopher_repetition_counts_duplicate_ngrams_once(n: int) -> None:
    vocabulary = [f"{a}{b}" for a in "bcdfghjklmnp" for b in "qrstvwxz"]
    repeated, other_words = vocabulary[:n], vocabulary[n : n + 40]
    text = " ".join([*repeated, *other_words[:20], *repeated, *other_words[20:]])
    words = words_of(text)
    fraction = len("".join(repeated)) / len(text)
    limits = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    expected = next((k for k in limits if k <= n and (n // k * k) / n * fraction > limits[k]), None)
    assert gopher_repetition(text, words) == (f"duplicate-{expected}-gram" if expected else None)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("Three words here.", "Three words here."),
        ('"Go on!" she said in the end"', '"Go on!" she said in the end"'),
        ("See above[12] and this.", "See above and this."),
        ("no end of a sentence", ""),
        ("It goes on and on...", ""),
        ("Two words.", ""),
        ("Please switch JavaScript on.", ""),
        ("We say so in our Privacy Policy.", ""),
        (f"A word {'x' * 1001} is long.", ""),
    ],
)
def test_c4_keeps_lines_of_prose(line: str, kept: str, good: str) -> None:
    text, rule = c4(f"{line}\n{good}", split)
    assert rule is None
    assert text.removesuffix(good).rstrip("\n") == kept


def test_c4_drops_pages(good: str) -> None:
    assert c4(f"{good}\nThis is Lorem ipsum text.", split)[1] == "lorem-ipsum"
    assert c4(f"{good}\nif (a) {{ this is code.", split)[1] == "curly-bracket"
    assert c4("Four sentences are few. Two are. Three are. Five are needed here.", split) == (
        "Four sentences are few. Two are. Three are. Five are needed here.",
        "few-sentences",
    )


@given(st.text(st.sampled_from("ab .…-•#{[1]\n\"'é中"), max_size=300))
def test_filters_accept_any_text(text: str) -> None:
    quality(text)
    repetition(text)
    kept, rule = c4(text, split)
    assert kept == text or rule is None
