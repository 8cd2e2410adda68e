"""Causal models read what they label within a frame, and nothing else changes."""

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
def frame(plain: Tokenizer) -> Tokenizer:
    return add_causal_tokens(plain)


@given(text=st.text(max_size=40), pair=st.text(max_size=40))
def test_a_text_is_what_it_was_within_its_frame(
    plain: Tokenizer, frame: Tokenizer, text: str, pair: str
) -> None:
    start, delimiter, extract = (frame.token(name) for name in (START, DELIMITER, EXTRACT))
    one, other = plain.encode(text), plain.encode(pair)
    found, both = frame.encode(text), frame.encode(text, pair)
    assert found.ids.tolist() == [start, *one.ids, extract]
    assert both.ids.tolist() == [start, *one.ids, delimiter, *other.ids, extract]
    assert found.offsets[1:-1].tolist() == one.offsets.tolist()
    assert not both.types.any()
    assert frame.ids([text])[0].tolist() == plain.ids([text])[0].tolist()


def test_the_tokens_stand_behind_the_vocabulary(plain: Tokenizer, frame: Tokenizer) -> None:
    names = frame.pieces(range(plain.vocab_size, frame.vocab_size))
    assert names == [START, DELIMITER, EXTRACT, "<pad>"]
    assert frame.pieces([frame.pad]) == ["<pad>"]
    assert frame.pieces(frame.encode("A", "b").ids) == [START, "A", DELIMITER, "b", EXTRACT]
    assert add_causal_tokens(frame).fingerprint == frame.fingerprint  # nothing is there twice
    assert frame.fingerprint != plain.fingerprint


@pytest.mark.parametrize("pair", [None, "several other words of a second text"])
@pytest.mark.parametrize("length", [5, 8])
def test_what_is_cut_keeps_its_frame(frame: Tokenizer, pair: str | None, length: int) -> None:
    text = "a text of many words that is longer than all this"
    cut = frame.encode(text, pair, max_length=length, truncate="longest")
    assert len(cut) == length
    assert cut.truncated
    pieces = frame.pieces(cut.ids)
    assert (pieces[0], pieces[-1]) == (START, EXTRACT)
    assert pieces.count(DELIMITER) == (pair is not None)


def test_a_saved_folder_has_the_frame(frame: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    frame.save(tmp_path, segments=False)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for texts in (("The class statement",), ("The class", "and a second text")):
        ids = frame.encode(*texts).ids.tolist()
        assert theirs(*texts)["input_ids"] == ids
        assert Tokenizer.load(tmp_path).encode(*texts).ids.tolist() == ids
    assert theirs.pad_token_id == frame.pad


def test_a_padding_token_that_is_there_stays() -> None:
    tokenizer = tiny_tokenizer(["a", "b"])
    frame = add_causal_tokens(tokenizer)
    assert frame.pad == tokenizer.pad
    assert frame.vocab_size == tokenizer.vocab_size + 3
    assert frame.pieces(frame.encode("a", "b").ids) == [START, "a", DELIMITER, "b", EXTRACT]
