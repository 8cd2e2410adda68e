"""Vocabulary extension keeps the ids of existing tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import ConfigError
from bertkit.text.extend import choose, extended, fertility, subword_ids
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

SPECIALS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
LETTERS = [*"abc", *(f"##{letter}" for letter in "abc")]


def tokenizer(folder: Path) -> Tokenizer:
    (folder / "vocab.txt").write_text("\n".join(SPECIALS + LETTERS), encoding="utf-8")
    return Tokenizer.load(folder / "vocab.txt")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer(tmp_path_factory.mktemp("vocab"))


def test_new_words_use_unused_ids_first(small: Tokenizer) -> None:
    larger, made = extended(small, ["abc", "ba", "cc"])
    assert made == {1: [7, 11, 12], 6: [8, 10], 13: [9, 12]}
    assert larger.encode("abc ba cc").ids.tolist() == [3, 1, 6, 13, 4]
    assert (small.vocab_size, larger.vocab_size) == (13, 14)
    for token in SPECIALS[2:6] + LETTERS:
        assert larger.core.token_to_id(token) == small.core.token_to_id(token)
    # The original tokenizer is unchanged.
    assert small.encode("abc").ids.tolist() == [3, 7, 11, 12, 4]


@given(st.lists(st.text("abc", min_size=2, max_size=6), min_size=1, max_size=8, unique=True))
def test_new_words_are_single_tokens(small: Tokenizer, words: list[str]) -> None:
    larger, made = extended(small, words)
    assert len(made) == len(words)
    for word in words:
        assert len(subword_ids(larger, word)) == 1
    text = " ".join(words)
    assert larger.decode(larger.ids([text])[0]) == small.decode(small.ids([text])[0]) == text


def test_extended_tokenizer_can_be_saved(small: Tokenizer, tmp_path: Path) -> None:
    larger, _ = extended(small, ["abc", "ba", "cc"])
    larger.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == larger.fingerprint != small.fingerprint
    vocab = Tokenizer.load(tmp_path / "vocab.txt")
    assert vocab.encode("abc ba cc").ids.tolist() == larger.encode("abc ba cc").ids.tolist()


def test_choose_returns_words_that_save_most_tokens(small: Tokenizer) -> None:
    counts = {"a": 1000, "ab": 30, "abc": 20, "cab": 20, "cccc": 4, "xyz": 100}
    assert choose(small, counts, 9) == ["abc", "cab", "ab"]
    assert choose(small, counts, 2) == ["abc", "cab"]
    larger, _ = extended(small, choose(small, counts, 3))
    assert fertility(larger, counts) < fertility(small, counts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "'a' is already in the vocabulary"),
        (["ab", "ab"], "'ab' is already in the vocabulary"),
        (["ab ba"], "expected one word, got 'ab ba'"),
        ([" "], r"expected one word, .* \(0 words\)"),
    ],
)
def test_extended_rejects_invalid_words(small: Tokenizer, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        extended(small, words)


def test_extended_rejects_other_tokenizers(english: list[str]) -> None:
    with pytest.raises(ConfigError, match="only WordPiece"):
        extended(train(english[:3], kind="bpe", size=300), ["word"])
