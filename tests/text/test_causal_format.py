"""Special tokens of causal models for classification."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_tokenizer

from bertkit.text.causal_format import DELIMITER, EXTRACT, START, add_causal_tokens
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train


@pytest.fixture(scope="module")
def plain(english: list[str]) -> Tokenizer:
    return train(english[:30], kind="bpe", size=400, use="write")


@pytest.fixture(scope="module")
def causal_tokenizer(plain: Tokenizer) -> Tokenizer:
    return add_causal_tokens(plain)


@given(text=st.text(max_size=40), pair=st.text(max_size=40))
def test_special_tokens_leave_text_tokens_unchanged(
    plain: Tokenizer, causal_tokenizer: Tokenizer, text: str, pair: str
) -> None:
    start, delimiter, extract = (
        causal_tokenizer.token(name) for name in (START, DELIMITER, EXTRACT)
    )
    first_text, second_text = plain.encode(text), plain.encode(pair)
    found, pair_encoding = causal_tokenizer.encode(text), causal_tokenizer.encode(text, pair)
    assert found.ids.tolist() == [start, *first_text.ids, extract]
    assert pair_encoding.ids.tolist() == [
        start,
        *first_text.ids,
        delimiter,
        *second_text.ids,
        extract,
    ]
    assert found.offsets[1:-1].tolist() == first_text.offsets.tolist()
    assert not pair_encoding.types.any()
    assert causal_tokenizer.ids([text])[0].tolist() == plain.ids([text])[0].tolist()


def test_special_tokens_follow_the_vocabulary(
    plain: Tokenizer, causal_tokenizer: Tokenizer
) -> None:
    names = causal_tokenizer.pieces(range(plain.vocab_size, causal_tokenizer.vocab_size))
    assert names == [START, DELIMITER, EXTRACT, "<pad>"]
    assert causal_tokenizer.pieces([causal_tokenizer.pad]) == ["<pad>"]
    assert causal_tokenizer.pieces(causal_tokenizer.encode("A", "b").ids) == [
        START,
        "A",
        DELIMITER,
        "b",
        EXTRACT,
    ]
    # No token is added twice.
    assert add_causal_tokens(causal_tokenizer).fingerprint == causal_tokenizer.fingerprint
    assert causal_tokenizer.fingerprint != plain.fingerprint


@pytest.mark.parametrize("pair", [None, "several other words of a second text"])
@pytest.mark.parametrize("length", [5, 8])
def test_truncated_text_keeps_special_tokens(
    causal_tokenizer: Tokenizer, pair: str | None, length: int
) -> None:
    text = "a text of many words that is longer than all this"
    cut = causal_tokenizer.encode(text, pair, max_length=length, truncate="longest")
    assert len(cut) == length
    assert cut.truncated
    tokens = causal_tokenizer.pieces(cut.ids)
    assert (tokens[0], tokens[-1]) == (START, EXTRACT)
    assert tokens.count(DELIMITER) == (pair is not None)


def test_saved_tokenizer_adds_special_tokens(causal_tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    causal_tokenizer.save(tmp_path, segments=False)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for texts in (("The class statement",), ("The class", "and a second text")):
        ids = causal_tokenizer.encode(*texts).ids.tolist()
        assert hf_tokenizer(*texts)["input_ids"] == ids
        assert Tokenizer.load(tmp_path).encode(*texts).ids.tolist() == ids
    assert hf_tokenizer.pad_token_id == causal_tokenizer.pad


def test_existing_padding_token_is_kept() -> None:
    tokenizer = tiny_tokenizer(["a", "b"])
    causal_tokenizer = add_causal_tokens(tokenizer)
    assert causal_tokenizer.pad == tokenizer.pad
    assert causal_tokenizer.vocab_size == tokenizer.vocab_size + 3
    assert causal_tokenizer.pieces(causal_tokenizer.encode("a", "b").ids) == [
        START,
        "a",
        DELIMITER,
        "b",
        EXTRACT,
    ]
