"""SentencePiece models have the tokens of SentencePiece; damaged and other files are rejected."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sentencepiece

from bertkit.errors import TokenizerError
from bertkit.extensions.generation.sentencepiece_model import read_model, unigram

TEXTS = [f"a text about {word}s and other {word}s" for word in ("dog", "cat", "bird", "fish")]


def write_model(folder: Path, size: int = 40, **options: object) -> Path:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5),
        model_prefix=str(folder / "trained"),
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return folder / "trained.model"


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_tokens_match_sentencepiece(byte_fallback: bool, tmp_path: Path) -> None:
    size = 300 if byte_fallback else 40
    options = {"user_defined_symbols": ["<x>"], "byte_fallback": byte_fallback}
    path = write_model(tmp_path, size, **options)
    model = read_model(path)
    core = unigram(model, [(token.piece, token.score) for token in model.pieces])
    peer = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in (*TEXTS, "two  dogs <x> and", "日 dogs"):
        assert core.encode(text).ids == peer.encode(text)
    assert core.encode(TEXTS[0]).ids != peer.encode(TEXTS[1])


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
def test_other_algorithm_is_rejected(kind: str, tmp_path: Path) -> None:
    path = write_model(tmp_path, 20, model_type=kind)
    with pytest.raises(TokenizerError, match=r"trained\.model: .* not supported; use a Unigram"):
        read_model(path)


def test_damaged_file_loads_or_is_rejected(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    content, chance, rejected = path.read_bytes(), random.Random(0), 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 2, 8])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.choice([None, chance.randrange(len(damaged))])])
        try:
            read_model(path)
        except TokenizerError:
            rejected += 1
    assert rejected > 100
