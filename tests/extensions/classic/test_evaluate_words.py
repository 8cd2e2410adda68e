"""Evaluation of words by layer, for Transformers, ELMo, and word vectors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_elmo, tiny_folder

from bertkit import cli
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.classic.evaluate_words import _threshold, evaluate_words
from bertkit.extensions.classic.train_vectors import word_similarity
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.text.vocabulary_training import train as train_tokenizer


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.5, 0.9]), st.booleans()), min_size=1))
def test_threshold_maximizes_accuracy(rows: list[tuple[float, bool]]) -> None:
    scores, same = np.float32([score for score, _ in rows]), np.array([label for _, label in rows])

    def accuracy(threshold: float) -> float:
        return float(((scores >= threshold) == same).mean())

    assert accuracy(_threshold(scores, same)) == max(map(accuracy, [*scores.tolist(), np.inf]))


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_evaluate_words_command(
    minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    financial = ["the bank lends money", "a bank of the town lends"]
    river = "the bank of the river is wet"
    rows = [
        {"word": "bank", "sentence1": financial[0], "sentence2": financial[1], "label": True},
        {"word": "bank", "sentence1": financial[0], "sentence2": river, "label": False},
    ]
    path = write_jsonl(tmp_path / "wic.jsonl", rows)
    assert cli.run(["evaluate", "words", str(minilm), str(path), "--train", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auc"][1:] == found["accuracy"][1:] == [1.0] * 6
    assert (len(found["auc"]), found["pairs"]) == (7, 2)

    path = tmp_path / "pairs.txt"
    path.write_text("cat\tcats\t9\ncat\tdog\t6\ncat\teconomics\t1\n", encoding="utf-8")
    assert cli.run(["evaluate", "words", str(minilm), str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["spearman"][-1] == 1.0
    with pytest.raises(ConfigError, match="train is not supported for word similarity"):
        evaluate_words(minilm, path, train=path)


def test_evaluate_words_rejects_unscorable_rows(minilm: Path, tmp_path: Path) -> None:
    row = {"word": "bank", "sentence1": "a bank", "sentence2": "the bank", "label": True}
    with pytest.raises(DataError, match="all rows have the same label"):
        evaluate_words(minilm, write_jsonl(tmp_path / "one.jsonl", [row, row]))
    distant_row = row | {"sentence1": "so " * 600 + "bank", "label": False}
    with pytest.raises(DataError, match="'bank' has no token within the maximum length"):
        evaluate_words(minilm, write_jsonl(tmp_path / "far.jsonl", [row, distant_row]))


def test_evaluate_words_compares_words_of_elmo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_elmo(tmp_path / "elmo")
    row = {"word": "bank", "sentence1": "a bank", "sentence2": "a bank", "label": True}
    other = row | {"sentence2": "the river has one bank, or two", "label": False}
    path = write_jsonl(tmp_path / "wic.jsonl", [row, other])
    assert cli.run(["evaluate", "words", str(folder), str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auc"] == [0.5, 1.0, 1.0]  # Layer 0 is independent of the sentence.
    path = tmp_path / "pairs.txt"
    path.write_text("cat\tcats\t9\ncat\tdog\t6\ncat\teconomics\t1\n", encoding="utf-8")
    assert len(evaluate_words(folder, path)["spearman"]) == 3
    assert cli.run(["evaluate", "words", str(folder), str(path), "--precision", "bf16"]) == 2
    assert "an ELMo supports only fp32" in capsys.readouterr().err


def test_evaluate_words_on_wordsim(minilm: Path, data_folder: Path) -> None:
    found = evaluate_words(minilm, data_folder / "wordsim" / "EN-WS-353-ALL.txt")
    assert found["pairs"] == 353
    assert max(found["spearman"]) > 0.6


def test_evaluate_words_on_wic(minilm: Path, data_folder: Path, tmp_path: Path) -> None:
    form = re.compile(r"Word: (.*?)\. Sentence 1: (.*?) Sentence 2: (.*)", re.S)
    rows = []
    for line in (data_folder / "wic" / "dev.jsonl").read_text(encoding="utf-8").splitlines():
        given = json.loads(line)
        match = form.fullmatch(given["text"])
        assert match is not None
        word, first, second = match.groups()
        label = bool(given["label"])
        rows.append({"word": word, "sentence1": first, "sentence2": second, "label": label})
    found = evaluate_words(minilm, write_jsonl(tmp_path / "wic.jsonl", rows))
    assert found["pairs"] == 400 - found["missing"] > 390
    assert max(found["auc"]) > found["auc"][0] + 0.05  # Layer 0 is independent of the sentence.


def test_evaluate_words_on_word_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = Vectors(
        ["cat", "cats", "dog", "bank", "banks"],
        np.float32([[1, 0.1], [1, 0.2], [1, 1], [0.3, 1], [-1, 0.4]]),
    )
    vectors.save(tmp_path / "vectors.txt")
    path = tmp_path / "pairs.txt"
    path.write_text("cat\tcats\t9\nCat\tdog\t6\ncat\tbank\t3\ncat\tzebra\t1\n", encoding="utf-8")
    assert cli.run(["evaluate", "words", str(tmp_path / "vectors.txt"), str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"spearman": [1.0], "best_layer": 0, "pairs": 3, "missing": 1}
    direct = word_similarity(vectors, path)
    assert direct == {"spearman": 1.0, "pairs": 3, "missing": 1}
    path.write_text("a\tzebra\t1\n", encoding="utf-8")
    with pytest.raises(DataError, match="no pair in which both words have a vector"):
        evaluate_words(tmp_path / "vectors.txt", path)

    def row(word: str, *texts: str, same: bool) -> dict[str, Any]:
        return {"word": word, "sentence1": texts[0], "sentence2": texts[1], "label": same}

    rows = [
        row("bank", "a bank lends", "the bank is wet", same=False),
        row("dog", "a dog", "the dog", same=True),
        row("cat", "a cat", "no cat", same=False),
        row("zebra", "a zebra", "no zebra", same=True),
    ]
    found = evaluate_words(tmp_path / "vectors.txt", write_jsonl(tmp_path / "wic.jsonl", rows))
    assert found == {"auc": [0.5], "best_layer": 0, "pairs": 3, "missing": 1}
    # The second text has another form of the word.
    rows[0] = row("bank", "a bank lends", "the banks are wet", same=False)
    found = evaluate_words(tmp_path / "vectors.txt", write_jsonl(tmp_path / "wic.jsonl", rows))
    assert found["auc"] == [0.75]


def test_evaluate_words_on_causal_model(tmp_path: Path, english: list[str]) -> None:
    tokenizer = train_tokenizer(english[:5], kind="bpe", size=400, use="write")
    folder = tiny_folder(tmp_path / "m", tokenizer, "lm", family=GPT2, layers=2, spread=0.2)
    row = {"word": "class", "sentence1": "a class of one", "sentence2": "a class is", "label": True}
    other = row | {"sentence2": "one name is the class of all", "label": False}
    path = write_jsonl(tmp_path / "wic.jsonl", [row, other])
    found = evaluate_words(folder, path)
    assert found["auc"][1:] == [1.0, 1.0]  # Only the left contexts of the first pair are equal.
    swapped = [row | {"label": False}, other | {"label": True}]
    found = evaluate_words(folder, write_jsonl(tmp_path / "wic.jsonl", swapped))
    assert found["auc"][1:] == [0.0, 0.0]  # Control.
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("class\tclasses\t9\nclass\tname\t6\nclass\tloop\t1\n", encoding="utf-8")
    assert len(evaluate_words(folder, pairs)["spearman"]) == 3
