"""Vocabulary training from files, and rejected settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import ConfigError, DataError
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train


@pytest.fixture
def texts(english: list[str], tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(english[:10]):
        (folder / f"{i}.txt").write_text(text, encoding="utf-8")
    return folder


def test_train_vocabulary_saves_the_trained_tokenizer(
    texts: Path, english: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "vocab"
    tokenizer = train_vocabulary([texts], kind="wordpiece", size=500, out=out)
    assert Tokenizer.load(out).fingerprint == tokenizer.fingerprint
    assert {p.name for p in out.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    assert tokenizer.fingerprint == train(english[:10], kind="wordpiece", size=500).fingerprint


def test_vocabulary_below_the_given_size_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("one two three one two", encoding="utf-8")
    train_vocabulary([tmp_path / "a.txt"], kind="wordpiece", size=500, out=tmp_path / "vocab")
    assert "tokens, not --size 500: the text is too short" in capsys.readouterr().err


def test_train_vocabulary_applies_settings(texts: Path, tmp_path: Path) -> None:
    tokenizer = train_vocabulary(
        [texts], kind="bpe", size=400, lowercase=True, max_length=128, out=tmp_path / "vocab"
    )
    assert tokenizer.max_length == 128
    assert tokenizer.encode("The").ids.tolist() == tokenizer.encode("the").ids.tolist()


def test_train_vocabulary_rejects_existing_output(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="already exists; choose another out="):
        train_vocabulary([texts], kind="wordpiece", size=500, out=texts)
    with pytest.raises(ConfigError, match="already exists; choose another out="):
        train_vocabulary([texts], kind="wordpiece", size=500, out=texts / "0.txt")
    (tmp_path / "empty").mkdir()
    train_vocabulary([texts], kind="wordpiece", size=500, out=tmp_path / "empty")
    assert (tmp_path / "empty" / "vocab.txt").is_file()


def test_rejected_vocabulary_training_writes_nothing(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "vocab"
    with pytest.raises(ConfigError, match="size must be at least"):
        train_vocabulary([texts], kind="wordpiece", size=20, out=out)
    with pytest.raises(DataError, match=r"missing\.txt"):
        train_vocabulary([tmp_path / "missing.txt"], kind="wordpiece", size=500, out=out)
    assert not out.exists()
