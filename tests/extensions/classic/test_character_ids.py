"""Characters of words: bytes between marks, cut as the published weights were trained."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertkit.extensions.classic.character_ids import (
    CHARACTERS,
    MASK,
    PADDING,
    bytes_of,
    sentence_ids,
)

ANY = st.text(st.characters(), max_size=70)


@given(st.lists(ANY, max_size=4))
def test_a_word_can_be_read_from_its_ids_up_to_48_bytes(words: list[str]) -> None:
    ids = sentence_ids(words, 50)
    assert ids.shape == (len(words) + 2, 50)
    assert ids.min() > 0  # the mask is for places without a word
    assert ids.max() < CHARACTERS
    for word, row in zip(words, ids[1:-1] - MASK, strict=True):
        held = row[row != PADDING].tolist()
        assert held == [258, *bytes_of(word)[:48], 259]
        assert (row[len(held) :] == PADDING).all()


def test_ids_are_the_published_ones() -> None:
    begin, word, end = (row[:5].tolist() for row in sentence_ids(["né"], 50))
    assert begin == [259, 257, 260, 261, 261]
    assert word == [259, ord("n") + 1, 0xC3 + 1, 0xA9 + 1, 260]
    assert end == [259, 258, 260, 261, 261]


def test_no_word_stands_for_the_begin_of_a_sentence() -> None:
    begin, word, _ = sentence_ids(["<S>"], 50)
    assert not np.array_equal(begin, word)
    assert bytes_of("a\ud800b") == b"ab"
