"""Pairs as long as one likes are still pairs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import ConfigError
from bertkit.extensions.generation.long_pairs import VOCABULARY_SIZE, joined, reversals

WORDS = st.lists(st.sampled_from(["a", "b b", "c"]), min_size=1, max_size=20)


@given(WORDS, st.integers(1, 5))
def test_joined_pairs_hold_all_words_in_their_order(texts: list[str], most: int) -> None:
    source, target = joined(texts, [text.upper() for text in texts], most)
    assert " ".join(source) == " ".join(texts)
    assert [text.upper() for text in source] == target
    if most == 1:
        assert source == texts


def test_neighbours_are_joined_in_turn() -> None:
    assert joined(list("abcdefgh"), list("ABCDEFGH"), 3) == (
        ["a", "b c", "d e f", "g", "h"],
        ["A", "B C", "D E F", "G", "H"],
    )


def test_letters_backwards_of_each_length_as_often() -> None:
    parts = reversals(7)
    for part, longest in (("train", 7), ("dev", 14)):
        source, target = parts[part]
        assert all(b.split() == a.split()[::-1] for a, b in zip(source, target, strict=True))
        counts = Counter(len(text.split()) for text in source)
        assert sorted(counts) == list(range(5, longest + 1))
        assert max(counts.values()) - min(counts.values()) <= 1
    assert parts == reversals(7)
    assert not set(parts["dev"][0]) & set(parts["train"][0])
    letters = {letter for text in parts["train"][0] for letter in text.split()}
    assert len({*letters, *(f" {letter}" for letter in letters)} | {" "}) + 3 == VOCABULARY_SIZE
    with pytest.raises(ConfigError, match="5 letters at least"):
        reversals(4)
