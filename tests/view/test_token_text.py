"""Tokens are spelled so that people can read them, and told apart as the vocabulary does."""

from __future__ import annotations

import torch
from tests.factories import tiny_tokenizer

from bertkit.text.vocabulary_training import train
from bertkit.view.token_text import likeliest, spelled


def test_bytes_are_read_as_text() -> None:
    tokenizer = train(["the cat sat", "für die Züge ü ü ü"], kind="bpe", size=300)
    ids = tokenizer.ids(["the cat\nü"])[0]
    read = spelled(tokenizer, ids)
    assert "".join(read).replace("▁", " ").replace("↵", "\n").strip() == "the cat\nü"
    assert "Ġ" in "".join(tokenizer.pieces(ids))  # the control: as the vocabulary has it
    halves = tokenizer.ids(["€"])[0]  # three bytes, none of which is a character
    assert len(halves) == 3
    assert spelled(tokenizer, halves) == tokenizer.pieces(halves)


def test_word_pieces_stay_as_they_are() -> None:
    tokenizer = tiny_tokenizer(["cat", "##s"])
    ids = tokenizer.encode("cats").ids
    assert spelled(tokenizer, ids) == tokenizer.pieces(ids) == ["[CLS]", "cat", "##s", "[SEP]"]


def test_the_likeliest_come_first() -> None:
    tokenizer = tiny_tokenizer(["a", "b"])
    chances = torch.tensor([0.0, 0.1, 0.0, 0.0, 0.0, 0.3, 0.6])
    answer = likeliest(tokenizer, chances, 2)
    assert [(one.token, round(one.score, 2)) for one in answer] == [("b", 0.6), ("a", 0.3)]
