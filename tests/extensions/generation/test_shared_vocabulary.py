"""One vocabulary of two languages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.extensions.generation.test_marian_tokenizer import sentences

from bertkit.errors import ConfigError
from bertkit.extensions.generation.shared_vocabulary import train_shared
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.text.tokenizer import Tokenizer


def test_train_shared_has_the_requested_size(english: list[str], tmp_path: Path) -> None:
    lines = [line for line in sentences(english) if len(line) < 120][:400]
    train_shared([*lines, *(line.upper() for line in lines)], tmp_path / "v", size=500)
    source, target = (Tokenizer.load(tmp_path / "v", side=side) for side in ("source", "target"))
    assert source.vocab_size == 500
    assert (source.eos, source.unk, source.pad) == (0, 1, 499)
    text = "An object, AN OBJECT."
    assert source.encode(text).ids.tolist() == target.encode(text).ids.tolist()
    assert source.decode(source.encode(text).ids) == text
    with pytest.raises(ConfigError, match="size = 90000: not possible for these texts"):
        train_shared(lines, tmp_path / "w", size=90_000)
    assert not (tmp_path / "w").exists()


def test_train_shared_learns_from_long_lines(tmp_path: Path) -> None:
    """SentencePiece skips lines of more than 4,192 bytes by default."""
    long = "Ω Ж paragraph " * 400
    (tmp_path / "a.txt").write_text(f"{long}\nwords and more words\n" * 3, encoding="utf-8")
    tokenizer = train_vocabulary(
        tmp_path / "a.txt", out=tmp_path / "vocab", kind="unigram", use="translate", size=20
    )
    assert tokenizer.unk not in tokenizer.encode("Ω Ж paragraph").ids
