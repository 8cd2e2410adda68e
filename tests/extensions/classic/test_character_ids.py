"""Character ids of words: bytes between boundary ids, truncated as in the published model."""

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
def test_sentence_ids_contain_first_48_bytes(words: list[str]) -> None:
    ids = sentence_ids(words, 50)
    assert ids.shape == (len(words) + 2, 50)
    assert ids.min() > 0  # Id 0 marks empty positions.
    assert ids.max() < CHARACTERS
    for word, row in zip(words, ids[1:-1] - MASK, strict=True):
        characters = row[row != PADDING].tolist()
        assert characters == [258, *bytes_of(word)[:48], 259]
        assert (row[len(characters) :] == PADDING).all()


def test_sentence_ids_match_published_ids() -> None:
    begin, word, end = (row[:5].tolist() for row in sentence_ids(["né"], 50))
    assert begin == [259, 257, 260, 261, 261]
    assert word == [259, ord("n") + 1, 0xC3 + 1, 0xA9 + 1, 260]
    assert end == [259, 258, 260, 261, 261]


def test_bos_string_differs_from_bos_token() -> None:
    begin, word, _ = sentence_ids(["<S>"], 50)
    assert not np.array_equal(begin, word)
    assert bytes_of("a\ud800b") == b"ab"
