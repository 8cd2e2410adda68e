"""Word replacement in augmented examples, and its reproducibility."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tiny_model

from bertkit import cli
from bertkit.checkpoint.directory import save
from bertkit.errors import BertkitError, ConfigError
from bertkit.extensions.classic.augment import WORD, Guesser, augment, replace_words
from bertkit.families import BERT
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

TEXTS = ["the dog ran home", "A cat, asleep: 9 lives!", "no dog sees the cat", "zyx ran"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a model that always predicts home, dog, and ran, in this order."""
    directory = tmp_path_factory.mktemp("augment") / "model"
    tokenizer = train(
        ["the dog ran home a cat asleep lives no sees " * 9], size=90, kind="wordpiece"
    )
    network = tiny_model(tokenizer, "mlm", hidden=8, intermediate=8, length=24)
    with torch.no_grad():
        for choice_index, word in enumerate(("home", "dog", "ran")):
            (token,) = tokenizer.ids([word])[0]
            network.heads["mlm"].bias[token] = 90.0 - choice_index
    save(directory, network, tokenizer, BERT)
    return directory


def table(path: Path) -> Path:
    rows = [f"{text}\t{'ab'[i % 2]}" for i, text in enumerate(TEXTS)]
    path.write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
    return path


def test_guesser_excludes_the_original_word(model: Path) -> None:
    guesser = Guesser(model, 2)
    assert guesser("the dog ran", [(4, 7), (8, 11)]) == [["home", "ran"], ["home", "dog"]]
    assert guesser.is_token("dog")
    assert not guesser.is_token("zyx")
    assert guesser("the dog ran", []) == []


def test_augment_writes_rows_and_reproducible_copies(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    data, options = table(tmp_path / "t.tsv"), {"copies": 3, "probability": 0.5}
    found = augment(data, model=model, out=out, **options)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert found["rows"] == 4
    assert found["written"] == len(rows) == 16
    texts = [row["text"] for row in rows]
    assert texts[::4] == TEXTS
    assert [row["label"] for row in rows] == [*"aaaabbbbaaaabbbb"]
    assert 0 < found["changed"] <= 12
    # The first word is several tokens and has no vector.
    assert all(row["text"].startswith("zyx ") for row in rows[12:])
    others = [[c for c in text if not c.isalpha()] for text in (*texts[4:8], TEXTS[1])]
    assert all(characters == others[-1] for characters in others)
    for seed in (0, 1):
        again = tmp_path / f"{seed}.jsonl"
        augment(data, model=model, out=again, seed=seed, **options)  # type: ignore[arg-type]
        assert (again.read_bytes() == out.read_bytes()) == (seed == 0)


def test_multi_token_words_use_the_nearest_vectors(model: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "v.txt"
    vectors.write_text("zyx 1 0\nwok 0.9 0.1\nfar -1 0\n", encoding="utf-8")
    out = tmp_path / "out.jsonl"
    options: dict[str, Any] = {"copies": 5, "probability": 1.0, "candidates": 1}
    augment(table(tmp_path / "t.tsv"), model=model, vectors=vectors, out=out, **options)
    rows = [json.loads(line)["text"] for line in out.read_text(encoding="utf-8").splitlines()]
    assert set(rows[-5:]) == {"wok home"}


def test_augment_keeps_pairs(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("sentence1\tsentence2\tlabel\nthe dog\tno cat\ta\n", encoding="utf-8")
    out = tmp_path / "out.jsonl"
    augment(file, model=model, out=out, copies=4, probability=1.0)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert all(set(row) == {"text", "pair", "label"} for row in rows)
    assert all(row["text"] != "the dog" and row["pair"] != "no cat" for row in rows[1:])


def test_replacement_rate_matches_the_given_probability() -> None:
    rng, found = np.random.default_rng(0), {(0, 1): ["x"], (2, 3): ["y", "z"]}
    texts = [replace_words("a b c", found, 0.3, rng) for _ in range(4000)]
    assert sum(t[0] == "x" for t in texts) / 4000 == pytest.approx(0.3, abs=0.03)
    assert sum(t[2] == "y" for t in texts) / 4000 == pytest.approx(0.15, abs=0.03)
    assert all(t[4] == "c" for t in texts)


def test_guesser_ignores_words_beyond_maximum_length(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guesser = Guesser(model, 3)
    text = "the loop " * 400
    spans = [(match.start(), match.end()) for match in WORD.finditer(text)]
    text_lengths: list[int] = []
    encode = Tokenizer.encode_batch

    def counting_encode(self: Tokenizer, texts: list[str], *rest: Any, **more: Any) -> Any:
        text_lengths.extend(map(len, texts))
        return encode(self, texts, *rest, **more)

    monkeypatch.setattr(Tokenizer, "encode_batch", counting_encode)
    found = guesser(text, spans)
    assert 0 < sum(map(bool, found)) < guesser.length
    assert sum(text_lengths) < len(text) * guesser.length / 4


def test_rejected_augmentation_writes_nothing(model: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "t.tsv")
    with pytest.raises(ConfigError, match=r"must be a \.jsonl file"):
        augment(data, model=model, out=tmp_path / "out.tsv")
    for wrong in ({"copies": 0}, {"probability": 0.0}, {"probability": 1.5}, {"candidates": 0}):
        with pytest.raises(ConfigError, match="copies and candidates must be at least 1"):
            augment(data, model=model, out=tmp_path / "out.jsonl", **wrong)  # type: ignore[arg-type]
    with pytest.raises(BertkitError):
        augment(data, model=tmp_path / "none", out=tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    (tmp_path / "out.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match="already exists"):
        augment(data, model=model, out=tmp_path / "out.jsonl")


def test_augment_command_output_can_be_fine_tuned_on(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    words = ["augment", str(table(tmp_path / "t.tsv")), "--model", str(model), "--copies", "2"]
    assert cli.run([*words, "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 12
    fit = ["finetune", "classify", "--model", str(model), "--train", str(out), "--dev", str(out)]
    assert cli.run([*fit, "--out", str(tmp_path / "tuned"), "--epochs", "1"]) == 0
