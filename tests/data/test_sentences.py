"""Sentence splitting, and cached tokenization that matches the tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import SPECIALS, tiny_tokenizer
from tokenizers import Tokenizer as Core
from tokenizers import models, pre_tokenizers

from bertkit.data import sentences
from bertkit.data.sentences import CachedTokenizer, split, split_with_spaces
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()] + ["é", "中", "ß"]
    words = ["the", "dog", "sleep", "##ing", "rare"]
    return tiny_tokenizer([*letters, *(f"##{x}" for x in letters if x.isalnum()), *words])


@pytest.mark.parametrize(
    "expected",
    [
        # Titles and initials.
        ["Mr. J. R. R. Smith paid $3.50 to Mrs. Jones.", "She smiled."],
        # Decimals and abbreviations.
        ["It is 3.14, e.g. pi.", "See Fig. 2 on p. 5."],
        ["The U.S. economy grew.", "He was born on Jan. 5, 1900 in St. Louis."],
        # Ellipsis and apostrophes.
        ["Wait... what?", "No!", "Really?!", "You can't.", "He won't."],
        # A long quotation is split.
        ['"Really?', "I did not know.", 'Tell us all!"', "He left."],
        ["“Go,” she said.", "“And so what?”", "He left."],
        # The reporting clause stays with its quotation.
        ['"Go!" she said.', "'No!' he cried.", "'Yes.'"],
        ["'Well, this is it.", "I am sure of it.'", "He sat down."],
        ["«Allez.", "Venez!» dit-il.", "« Non. »", "Il part."],
        ["The dogs' bones lay there.", "Nobody's dog ate them."],
        ['He said: "Stop.', 'Do not go."', '"Never!"', "Mr. Smith cried."],
    ],
)
def test_split_finds_sentence_ends(expected: list[str]) -> None:
    assert split(" ".join(expected)) == expected


def test_split_joins_lines_and_splits_at_blank_lines() -> None:
    text = "CHAPTER I\n\nIt was a\r\ndark   night. It\trained\n \t\nand rained.\r\n\r\nThe end"
    assert split(text) == [
        "CHAPTER I",
        "It was a dark night.",
        "It rained",
        "and rained.",
        "The end",
    ]
    assert split(" \n\n\t") == []


@given(st.text(st.sampled_from("abA.!?'\"“”‘’«»()… \n1,中\u3000é\U0001d11e"), max_size=300))
@settings(max_examples=200)
def test_split_keeps_all_characters_in_order(text: str) -> None:
    found = split(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(s == " ".join(s.split()) and s for s in found)


@given(st.text(max_size=200))
def test_split_keeps_characters_of_any_script(text: str) -> None:
    assert "".join("".join(split(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "odd", ['He said "no" (x). ', "''", "( ", ". ", "a.", "中文。", "x" * 10, "'a. "]
)
def test_split_bounds_length_of_unusual_text(odd: str) -> None:
    text = odd * (250_000 // len(odd))
    found = split(text)
    assert max(map(len, found)) <= sentences.SPLITTER_CHARACTERS
    assert "".join("".join(found).split()) == "".join(text.split())


def test_sentences_do_not_depend_on_window_size(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Mr. Smith paid $3.50. “Is it so?” he asked. 'It is! Yes.' They left... " * 40
    whole = split(text)
    assert len(whole) == 40 * 5
    for size in (90, 101, 133, 1000):
        monkeypatch.setattr(sentences, "SPLITTER_CHARACTERS", size)
        assert split(text) == whole


# ---- Token ids


def same_ids(encoder: CachedTokenizer, tokenizer: Tokenizer, texts: list[str]) -> bool:
    tokens, counts = encoder(texts)
    expected = tokenizer.ids(texts)
    assert counts.tolist() == [len(ids) for ids in expected]
    return np.array_equal(tokens, np.concatenate([np.empty(0, int), *expected]))


SENTENCE = st.lists(
    st.sampled_from(
        ["the", "dogs", "Sleeping,", "rare", "[MASK]", "[UNK]", "\u0308", "\u200b", "é"]
    )
    | st.text(max_size=8),
    max_size=12,
).map(lambda words: " ".join(" ".join(words).split()))


@given(st.lists(st.lists(SENTENCE, max_size=6), max_size=4))
@settings(max_examples=150)
def test_cached_words_match_tokenizer(tokenizer: Tokenizer, batches: list[list[str]]) -> None:
    encoder = CachedTokenizer(tokenizer)
    assert all(same_ids(encoder, tokenizer, batch) for batch in batches)


def test_separator_word_in_text_matches_tokenizer(tokenizer: Tokenizer) -> None:
    word, id_ = sentences._rare_word(tokenizer)  # type: ignore[misc]
    assert tokenizer.ids([word])[0].tolist() == [id_]
    encoder = CachedTokenizer(tokenizer)
    assert same_ids(encoder, tokenizer, [f"the {word} dog", f"{word},{word}", "the end"])
    assert same_ids(encoder, tokenizer, ["other words", word])


def test_full_cache_is_cleared(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "CACHED_WORDS", 3)
    encoder = CachedTokenizer(tokenizer)
    for batch in (["the dog sleeps long"], ["the dog"], ["a b c d e", "the dog"], ["dog"]):
        assert same_ids(encoder, tokenizer, batch)
    assert encoder._cache is not None
    assert encoder._cache.indices == {"dog": 0}


def test_tokens_across_words_disable_the_cache() -> None:
    vocab = {token: i for i, token in enumerate([*SPECIALS, "Ġ", "a", "b", "Ġa", "aĠ"])}
    core = Core(models.BPE(vocab, [("Ġ", "a")], unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(core, {})
    encoder = CachedTokenizer(tokenizer)
    assert encoder._cache is None
    assert same_ids(encoder, tokenizer, ["a a b", "b", "a"])
    words = tokenizer.ids(["a", "a", "b"])
    assert np.concatenate(words).tolist() != tokenizer.ids(["a a b"])[0].tolist()  # the control


@given(
    st.lists(
        st.sampled_from(["你好。", "世界很大。", "A cat.", " ", "\n", "\n\n", "(1931).", "<br />"])
    )
)
def test_restore_spaces_matches_text_with_single_spaces(parts: list[str]) -> None:
    """If the space before a word belongs to its token, no space is inserted into the text."""
    text = "".join(parts)
    tokenizer = train(["你好。世界很大。 A cat. (1931). <br />"], kind="bpe", size=300, use="write")
    for begins in (True, False):
        spaced = CachedTokenizer(tokenizer).restore_spaces(split_with_spaces(text), begins=begins)
        whole = " ".join(text.split())
        assert "".join(spaced) == (whole if begins or not whole else f" {whole}")


def test_token_dtype_depends_on_vocabulary_size(tokenizer: Tokenizer) -> None:
    assert CachedTokenizer(tokenizer)(["the dog"])[0].dtype == np.uint16
    assert CachedTokenizer(tokenizer)([])[0].dtype == np.uint16
    assert sentences.token_dtype(1 << 16).itemsize == 2
    assert sentences.token_dtype((1 << 16) + 1).itemsize == 4


def test_real_text_matches_tokenizer(tokenizer: Tokenizer, english: list[str]) -> None:
    found = [s for chapter in english[:12] for s in split(chapter)]
    assert len(found) > 100
    assert same_ids(CachedTokenizer(tokenizer), tokenizer, found)


def test_public_vocabulary_matches_tokenizer(data_folder: Path) -> None:
    tokenizer = Tokenizer.load(data_folder / "vocab" / "bert_cased_vocab.txt")
    text = (data_folder / "wikitext2" / "valid.txt").read_text(encoding="utf-8")
    assert same_ids(CachedTokenizer(tokenizer), tokenizer, split(text[:300_000]))
