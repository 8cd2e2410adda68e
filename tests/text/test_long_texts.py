"""Long texts: errors, truncation, and overlapping windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_tokenizer

from bertkit.errors import DataError
from bertkit.text.long_texts import average_windows, encode
from bertkit.text.tokenizer import Tokenizer

LETTERS = "abcdefgh"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer(LETTERS)


def test_error_reports_the_long_text(tokenizer: Tokenizer) -> None:
    texts = ["a b", "a " * 20]
    with pytest.raises(DataError, match=r"'a a a .*: 22 tokens, but the limit is 10"):
        encode(tokenizer, texts, length=10, long="error")
    assert encode(tokenizer, texts, length=22, long="error")[1] == [0, 1]


def test_truncate_marks_truncated_texts(tokenizer: Tokenizer) -> None:
    found, owner = encode(tokenizer, ["a b", "a " * 20], length=10, long="truncate")
    assert [(len(e), e.truncated) for e in found] == [(4, False), (10, True)]
    assert owner == [0, 1]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.booleans())
def test_windows_contain_each_token(tokenizer: Tokenizer, sizes: list[int], paired: bool) -> None:
    texts = [" ".join(LETTERS[i % 8] for i in range(size)) for size in sizes]
    pairs = texts if paired else None
    first = ["c"] * len(texts) if paired else texts
    found, owner = encode(tokenizer, first, pairs, length=12, long="window")
    assert owner == sorted(owner)
    for index, text in enumerate(texts):
        windows = [e for e, o in zip(found, owner, strict=True) if o == index]
        assert all(len(window) <= 12 for window in windows)
        read = {
            tuple(span)
            for window in windows
            for span, which in zip(window.offsets.tolist(), window.sequence, strict=True)
            if which == int(paired)
        }
        assert read == {(i, i + 1) for i in range(0, len(text), 2)}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_average_windows_weights_by_window_length(tokenizer: Tokenizer, sizes: list[int]) -> None:
    texts = ["a " * size for size in sizes]
    found, owner = encode(tokenizer, texts, length=12, long="window")
    rows = np.random.default_rng(0).normal(size=(len(found), 3)).astype(np.float32)
    expected = []
    for index in range(len(texts)):
        indices = [i for i, text in enumerate(owner) if text == index]
        expected.append(np.average(rows[indices], axis=0, weights=[len(found[i]) for i in indices]))
    np.testing.assert_allclose(average_windows(rows, found, owner), expected, rtol=1e-5, atol=1e-6)
