"""Fine-tuning in several processes matches one process, also with negatives of all processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.factories import tiny_folder

from bertkit.storage import sha256
from bertkit.text.tokenizer import Tokenizer

TASKS = {
    "classify": ("labels", "classify"),
    "contrastive": ("labels", "classify", "--contrastive"),
    "negatives of the batch": ("pairs", "similarity"),
    "cosent": ("scored", "similarity", "--loss", "cosent"),
}
"""File of examples, and words of the command."""


@pytest.fixture(scope="module")
def model(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without dropout, because each process samples its own dropout."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    none = {"dropout": 0.0, "attention_dropout": 0.0}
    return tiny_folder(folder, Tokenizer.load(world.vocab), "mlm", **none)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    """Files of 22 examples whose texts differ in length. Batches of 6 leave 4 for the last step."""
    folder = tmp_path_factory.mktemp("rows")
    texts = [" ".join(english[i].split()[: 3 + 2 * (i % 7)]) for i in range(22)]
    pairs = [{"sentence1": text, "sentence2": f"{text[::2]} {i}"} for i, text in enumerate(texts)]
    scored = [{**pair, "score": i % 5} for i, pair in enumerate(pairs)]
    labels = [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
    for name, examples in {"pairs": pairs, "scored": scored, "labels": labels}.items():
        lines = (json.dumps(row) + "\n" for row in examples)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def command(
    task: str, model: Path, rows: Path, out: Path, *more: object, batch_size: int = 6
) -> list[object]:
    file, *words = TASKS[task]
    data = rows / f"{file}.jsonl"
    files = ("--model", model, "--train", data, "--dev", data, "--out", out)
    settings = (
        "--batch-size", batch_size, "--epochs", 2, "--learning-rate", 1e-3, "--precision", "fp32",
    )  # fmt: skip
    return ["finetune", *words, *files, *settings, "--device", "cpu", *more]


def losses(run: Path) -> list[dict[str, Any]]:
    lines = (run / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for line in lines if "loss" in (record := json.loads(line))]


def assert_nearly_equal(run: Path, whole: Path) -> None:
    """Check that losses and weights differ only by rounding."""
    for actual, expected in zip(losses(run), losses(whole), strict=True):
        assert actual["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert actual["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-3)
        assert actual["tokens"] == expected["tokens"]
    weights = load_file(run / "model.safetensors")
    for name, weight in load_file(whole / "model.safetensors").items():
        torch.testing.assert_close(weights[name], weight, atol=1e-4, rtol=0)


@pytest.mark.parametrize("task", TASKS)
def test_three_processes_match_one(
    task: str, forker: Any, model: Path, rows: Path, tmp_path: Path
) -> None:
    one, three, other = (
        # With 7 pairs per step, all steps of the contrastive task have the same size.
        command(task, model, rows, tmp_path / name, batch_size=7 if task == "contrastive" else 6)
        for name in ("one", "three", "other")
    )
    assert forker(*one) == 0, forker.output
    assert forker.together(3, *three) == [0, 0, 0], forker.output
    assert_nearly_equal(tmp_path / "three", tmp_path / "one")
    assert (tmp_path / "three" / "scores.json").exists()
    assert (tmp_path / "three" / "README.md").exists()
    # The control: runs are not equal regardless of their examples.
    assert forker(*other, "--seed", 1) == 0, forker.output
    with pytest.raises(AssertionError):
        assert_nearly_equal(tmp_path / "other", tmp_path / "one")


def test_stopped_and_killed_processes_resume(
    forker: Any, model: Path, rows: Path, tmp_path: Path
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    whole_command = command("negatives of the batch", model, rows, whole, "--save-minutes", 0)
    assert forker.together(2, *whole_command) == [0, 0], forker.output
    words = command("negatives of the batch", model, rows, run, "--save-minutes", 0, "--resume")
    at = {"journal": str(run / "journal.jsonl"), "lines": 2, "rank": 1}
    codes = forker.together(2, *words[:-1], **at, signal=signal.SIGTERM)
    assert codes == [0, 0], forker.output
    codes = forker.together(2, *words, **{**at, "lines": 5}, signal=signal.SIGKILL)
    assert codes == [2, -signal.SIGKILL], forker.output
    assert "Traceback" not in forker.output
    assert forker.together(2, *words) == [0, 0], forker.output
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")


def test_one_process_continues_run_of_two(
    forker: Any, model: Path, rows: Path, tmp_path: Path
) -> None:
    whole, run = (command("classify", model, rows, tmp_path / name) for name in ("whole", "run"))
    assert forker(*whole) == 0, forker.output
    at = {"journal": str(tmp_path / "run" / "journal.jsonl"), "lines": 2, "rank": 0}
    assert forker.together(2, *run, **at, signal=signal.SIGTERM) == [0, 0], forker.output
    assert forker(*run, "--resume") == 0, forker.output
    assert_nearly_equal(tmp_path / "run", tmp_path / "whole")


def test_step_with_fewer_examples_than_processes(
    forker: Any, model: Path, rows: Path, tmp_path: Path
) -> None:
    words = command("classify", model, rows, tmp_path / "run", batch_size=7)
    assert forker.together(3, *words) == [0, 0, 0], forker.output
    words = command("classify", model, rows, tmp_path / "small", batch_size=2)
    assert forker.together(3, *words) == [2, 2, 2]
    assert "a step has only 2 examples; start at most 2 processes" in forker.output
