"""What layers know of words: by hand, against transformers, and on real data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import tiny_elmo

from bertkit import cli
from bertkit.errors import ConfigError, DataError
from bertkit.recipes.words import _auc, _bound, evaluate_words


def test_the_bound_that_tells_most_apart() -> None:
    scores, same = np.float32([0.9, 0.2, 0.6, 0.5]), np.array([True, False, True, False])
    assert _bound(scores, same) == pytest.approx(0.6)
    assert _auc(scores, same) == 1.0
    assert _auc(-scores, same) == 0.0
    assert _auc(np.zeros(4, np.float32), same) == 0.5


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_from_the_command_line(
    minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alike = ["the bank lends money", "a bank of the town lends"]
    river = "the bank of the river is wet"
    rows = [
        {"word": "bank", "sentence1": alike[0], "sentence2": alike[1], "label": True},
        {"word": "bank", "sentence1": alike[0], "sentence2": river, "label": False},
    ]
    path = write(tmp_path / "wic.jsonl", rows)
    assert cli.run(["evaluate", "words", str(minilm), str(path), "--train", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auc"][1:] == found["accuracy"][1:] == [1.0] * 6
    assert (len(found["auc"]), found["pairs"]) == (7, 2)

    path = tmp_path / "pairs.txt"
    path.write_text("cat\tcats\t9\ncat\tdog\t6\ncat\teconomics\t1\n", encoding="utf-8")
    assert cli.run(["evaluate", "words", str(minilm), str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["spearman"][-1] == 1.0
    with pytest.raises(ConfigError, match="train: cosines of words are ranked"):
        evaluate_words(minilm, path, train=path)


def test_rows_that_cannot_be_scored(minilm: Path, tmp_path: Path) -> None:
    one = {"word": "bank", "sentence1": "a bank", "sentence2": "the bank", "label": True}
    with pytest.raises(DataError, match="its rows are of one label"):
        evaluate_words(minilm, write(tmp_path / "one.jsonl", [one, one]))
    far = one | {"sentence1": "so " * 600 + "bank", "label": False}
    with pytest.raises(DataError, match="the model reads no piece of 'bank'"):
        evaluate_words(minilm, write(tmp_path / "far.jsonl", [one, far]))


def test_of_an_elmo_whole_words_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_elmo(tmp_path / "elmo")
    row = {"word": "bank", "sentence1": "a bank", "sentence2": "a bank", "label": True}
    other = row | {"sentence2": "the river has one bank, or two", "label": False}
    path = write(tmp_path / "wic.jsonl", [row, other])
    assert cli.run(["evaluate", "words", str(folder), str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auc"] == [0.5, 1.0, 1.0]  # layer 0 is the same vector in any sentence
    path = tmp_path / "pairs.txt"
    path.write_text("cat\tcats\t9\ncat\tdog\t6\ncat\teconomics\t1\n", encoding="utf-8")
    assert len(evaluate_words(folder, path)["spearman"]) == 3
    assert cli.run(["evaluate", "words", str(folder), str(path), "--precision", "bf16"]) == 2
    assert "words has none" in capsys.readouterr().err


def test_real_words(minilm: Path, data_folder: Path) -> None:
    found = evaluate_words(minilm, data_folder / "wordsim" / "EN-WS-353-ALL.txt")
    assert found["pairs"] == 353
    assert max(found["spearman"]) > 0.6


def test_real_words_in_context(minilm: Path, data_folder: Path, tmp_path: Path) -> None:
    form = re.compile(r"Word: (.*?)\. Sentence 1: (.*?) Sentence 2: (.*)", re.S)
    rows = []
    for line in (data_folder / "wic" / "dev.jsonl").read_text(encoding="utf-8").splitlines():
        given = json.loads(line)
        match = form.fullmatch(given["text"])
        assert match is not None
        word, first, second = match.groups()
        label = bool(given["label"])
        rows.append({"word": word, "sentence1": first, "sentence2": second, "label": label})
    found = evaluate_words(minilm, write(tmp_path / "wic.jsonl", rows))
    assert found["pairs"] == 400 - found["missing"] > 390
    assert max(found["auc"]) > found["auc"][0] + 0.05  # layer 0 knows nothing of the sentence
