"""Few-shot prompts: predicted labels, calibration, and sampled examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.extensions.generation.test_chat_format import vocabulary
from tests.factories import tiny_folder

import bertkit
from bertkit.errors import BertkitError, ConfigError, DataError
from bertkit.extensions.generation.prompts import evaluate_prompts
from bertkit.extensions.generation.stepper import Request, Stepper
from bertkit.families import FAMILIES

TEMPLATE = "T: {text}\\nL: {label}\\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts") / "writer"
    shape: dict[str, Any] = {"hidden": 32, "layers": 2, "length": 256, "spread": 0.2}
    return tiny_folder(folder, vocabulary("plain"), "lm", family=FAMILIES["gpt2"], **shape)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("rows")
    rows = {
        "train": [(f"good {i}", "fine") for i in range(6)]
        + [(f"bad {i}", "poor") for i in range(6)],
        "dev": [("quite good", "fine"), ("so bad", "poor"), ("good good", "fine")],
    }
    for name, texts in rows.items():
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in texts]
        (directory / f"{name}.jsonl").write_text("".join(lines))
    return {name: directory / f"{name}.jsonl" for name in rows}


def test_zero_shot_prediction_is_the_most_probable_word(
    folder: Path, files: dict[str, Path]
) -> None:
    (result,) = evaluate_prompts(
        folder, **files, template=TEMPLATE, words=["fine=yes", "poor=no"], shots=[0]
    )
    right = calibrated = 0
    words = {"fine": " yes", "poor": " no"}
    empty = {label: logprob_after(folder, "T: N/A\nL:", word) for label, word in words.items()}
    for line in files["dev"].read_text().splitlines():
        row = json.loads(line)
        prompt = f"T: {row['text']}\nL:"
        scores = {label: logprob_after(folder, prompt, word) for label, word in words.items()}
        right += max(scores, key=lambda name: scores[name]) == row["label"]
        differences = {label: scores[label] - empty[label] for label in words}
        calibrated += max(differences, key=lambda name: differences[name]) == row["label"]
    assert result.accuracy == pytest.approx(right / 3)
    assert result.calibrated == pytest.approx(calibrated / 3)
    assert result.majority == pytest.approx(2 / 3)
    assert (result.shots, result.deviation, result.rows) == (0, 0.0, 3)


def logprob_after(folder: Path, prompt: str, word: str) -> float:
    """Return the log-probability of `word` after the EOS token and `prompt`."""
    loaded = bertkit.load(folder)
    stepper = Stepper(loaded.model, vocab=loaded.tokenizer.vocab_size)
    ids = np.append([loaded.tokenizer.eos], loaded.tokenizer.ids([prompt])[0])
    total = 0.0
    for token in loaded.tokenizer.ids([word])[0]:
        _, logits = stepper.start([Request(ids)])
        total += float(torch.log_softmax(logits[0], -1)[token])
        ids = np.append(ids, token)
    return total


def test_examples_depend_only_on_the_seed(
    folder: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {**files, "template": TEMPLATE, "shots": [0, 2], "repeats": 2}
    scores = evaluate_prompts(folder, **options, out=tmp_path / "out")
    assert scores == evaluate_prompts(folder, **options)
    assert [row.shots for row in scores] == [0, 2]
    assert json.loads((tmp_path / "out" / "accuracy.json").read_text())[1]["shots"] == 2
    assert (tmp_path / "out" / "accuracy.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"template": "{text}"}, ConfigError, "template"),
        ({"template": "{label} {text}"}, ConfigError, "template"),
        ({"words": ["other=x"]}, ConfigError, "LABEL=WORD"),
        ({"words": ["fine"]}, ConfigError, "LABEL=WORD"),
        ({"template": "x" * 250 + TEMPLATE}, DataError, "leaves no space for new tokens"),
    ],
)
def test_evaluate_prompts_rejects_invalid_options(
    changed: dict[str, Any],
    error: type[BertkitError],
    message: str,
    folder: Path,
    files: dict[str, Path],
) -> None:
    with pytest.raises(error, match=message):
        evaluate_prompts(folder, **{**files, "template": TEMPLATE, "shots": [0], **changed})


def test_evaluate_prompts_rejects_existing_output_directory(
    folder: Path, files: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError, match="already exists"):
        evaluate_prompts(folder, **files, out=folder)


def test_evaluate_prompts_rejects_label_missing_from_train(
    folder: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    dev = tmp_path / "dev.jsonl"
    dev.write_text('{"text": "a", "label": "fine"}\n{"text": "b", "label": "odd"}\n')
    with pytest.raises(DataError, match=r"dev\.jsonl:2: no row of train has the label 'odd'"):
        evaluate_prompts(folder, train=files["train"], dev=dev, shots=[0])
