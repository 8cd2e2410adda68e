"""Readable text of tokens that still distinguishes them."""

from __future__ import annotations

import torch
from tests.factories import tiny_tokenizer

from bertkit.text.vocabulary_training import train
from bertkit.view.token_text import likeliest, spelled


def test_byte_level_tokens_show_their_text() -> None:
    tokenizer = train(["the cat sat", "für die Züge ü ü ü"], kind="bpe", size=300)
    ids = tokenizer.ids(["the cat\nü"])[0]
    read = spelled(tokenizer, ids)
    assert "".join(read).replace("▁", " ").replace("↵", "\n").strip() == "the cat\nü"
    # The control: the text in the vocabulary.
    assert "Ġ" in "".join(tokenizer.pieces(ids))
    # Three bytes that are not characters.
    halves = tokenizer.ids(["€"])[0]
    assert len(halves) == 3
    assert spelled(tokenizer, halves) == tokenizer.pieces(halves)


def test_wordpiece_tokens_are_unchanged() -> None:
    tokenizer = tiny_tokenizer(["cat", "##s"])
    ids = tokenizer.encode("cats").ids
    assert spelled(tokenizer, ids) == tokenizer.pieces(ids) == ["[CLS]", "cat", "##s", "[SEP]"]


def test_likeliest_returns_most_probable_first() -> None:
    tokenizer = tiny_tokenizer(["a", "b"])
    probabilities = torch.tensor([0.0, 0.1, 0.0, 0.0, 0.0, 0.3, 0.6])
    answer = likeliest(tokenizer, probabilities, 2)
    assert [(item.token, round(item.score, 2)) for item in answer] == [("b", 0.6), ("a", 0.3)]
