"""Vocabulary extension: new embeddings start from the mean of the previous tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.factories import tiny_folder

from bertkit import cli
from bertkit.batch import Batch
from bertkit.checkpoint.directory import load
from bertkit.errors import ConfigError
from bertkit.recipes.extend import extend
from bertkit.text.vocabulary_training import train


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    directory = tmp_path_factory.mktemp("extend")
    tokenizer = train(english[:4], kind="wordpiece", size=200)
    tiny_folder(directory / "model", tokenizer, "mlm", "nsp", length=64)
    for i, text in enumerate(english[:4]):
        (directory / f"{i}.txt").write_text(text, encoding="utf-8")
    return directory


def test_extend_adds_words_with_mean_embeddings(base: Path, tmp_path: Path) -> None:
    found = extend(base / "model", sorted(base.glob("*.txt")), out=tmp_path / "out", size=20)
    assert found["words"] == 20
    assert found["tokens_per_word"]["after"] < found["tokens_per_word"]["before"]
    old, new = load(base / "model"), load(tmp_path / "out")
    assert new.model.config.vocab == old.model.config.vocab + 20
    word = found["first"][0]
    ids = old.tokenizer.ids([word])[0]
    assert len(ids) > 1
    (index,) = new.tokenizer.ids([word])[0]
    for name in ("encoder.embedding.tokens.weight", "heads.mlm.bias"):
        before, after = (m.model.state_dict()[name] for m in (old, new))
        assert torch.equal(after[: len(before)], before)
        torch.testing.assert_close(after[index], before[torch.tensor(ids)].mean(0))


def test_extend_keeps_states_of_other_texts(base: Path, tmp_path: Path) -> None:
    extend(base / "model", sorted(base.glob("*.txt")), out=tmp_path / "out", words=["zyxzyx"])
    old, new = load(base / "model"), load(tmp_path / "out")
    with torch.no_grad():
        a, b = (m.model.encoder(Batch.of([m.tokenizer.encode("if and else")])) for m in (old, new))
    assert torch.equal(a, b)


def test_extended_tokenizer_matches_hugging_face(base: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    extend(base / "model", sorted(base.glob("*.txt")), out=tmp_path / "out", words=["zyxzyx"])
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    bertkit_tokenizer = load(tmp_path / "out").tokenizer
    assert (
        hf_tokenizer("a zyxzyx b")["input_ids"]
        == bertkit_tokenizer.encode("a zyxzyx b").ids.tolist()
    )
    transformers.BertForPreTraining.from_pretrained(tmp_path / "out")


def test_rejected_extension_writes_nothing(base: Path, tmp_path: Path) -> None:
    texts = sorted(base.glob("*.txt"))
    with pytest.raises(ConfigError, match="set either words, or size"):
        extend(base / "model", texts, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="at least 100000 times"):
        extend(base / "model", texts, out=tmp_path / "out", size=5, min_frequency=100000)
    with pytest.raises(ConfigError, match="is already in the vocabulary"):
        extend(base / "model", texts, out=tmp_path / "out", words=["a"])
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="already exists"):
        extend(base / "model", texts, out=base, size=5)


def test_extend_command_adds_words_of_file(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words.txt").write_text("zyxzyx\n\nxyzxyz\n", encoding="utf-8")
    command = ["tokenizer", "extend", str(base / "model"), str(base / "0.txt")]
    words = ["--words", str(tmp_path / "words.txt")]
    assert cli.run([*command, "--out", str(tmp_path / "out"), *words]) == 0
    assert json.loads(capsys.readouterr().out)["words"] == 2
