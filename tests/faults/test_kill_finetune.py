"""A fine-tuning run killed at any moment resumes to the same model, scores, and errors."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from bertkit.storage import sha256
from bertkit.training.journal import Journal

MEASURED = ("tokens_per_second", "data_wait", "peak_memory")
"""Journal values that depend on the machine."""

COMPARED = ("model.safetensors", "config.json", "scores.json", "errors.jsonl", "README.md")


@pytest.fixture(scope="module")
def command(world: Any, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Command of a run of two epochs of three steps that saves after each step."""
    folder = tmp_path_factory.mktemp("rows")
    rows = [f"the {('loop', 'class')[i % 2]} number {i}\t{('no', 'yes')[i % 2]}" for i in range(24)]
    for name, part in (("train", rows), ("dev", rows[:8])):
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(part), encoding="utf-8")
    files = ["--train", folder / "train.tsv", "--dev", folder / "dev.tsv"]
    fit = ["--epochs", 2, "--batch-size", 8, "--learning-rate", "1e-2", "--precision", "fp32"]
    start = ["finetune", "classify", "--model", world.model]
    return [*start, *files, *fit, "--save-minutes", 0, "--out"]


@pytest.fixture(scope="module")
def whole(command: list[object], forker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    assert forker(*command, run) == 0, forker.output
    return run


def resume(command: list[object], forker: Any, run: Path) -> None:
    """Resume the run, or start it if it was killed before it was created."""
    code = forker(*command, run, "--resume")
    if code == 2 and "contains no run to resume" in forker.output:
        code = forker(*command, run)
    assert code == 0, forker.output


def assert_same_run(run: Path, whole: Path) -> None:
    for name in COMPARED:
        assert sha256(run / name) == sha256(whole / name), name
    actual, expected = (
        [
            {name: value for name, value in record.items() if name not in MEASURED}
            for record in Journal(folder).records()
        ]
        for folder in (run, whole)
    )
    assert actual == expected
    assert [record["step"] for record in actual] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert not (run / "checkpoints").exists()


FEW, MORE = (1, 3, 11, 31, 53, 97), (2, 5, 17, 23, 41, 67, 83, 109)
"""Index of the write before which the process is killed."""


@pytest.mark.parametrize("write", [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_finetuning_killed_before_write_resumes(
    write: int, command: list[object], forker: Any, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert forker(*command, run, at_write=write) == -signal.SIGKILL, forker.output
    resume(command, forker, run)
    assert_same_run(run, whole)


def test_interrupt_saves_checkpoint_and_reports_how_to_resume(
    command: list[object], forker: Any, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    at = {"journal": str(run / "journal.jsonl"), "lines": 2}
    assert forker(*command, run, signal=signal.SIGINT, **at) == 130, forker.output
    assert "which is saved; continue with --resume" in forker.output.splitlines()[-1]
    resume(command, forker, run)
    assert_same_run(run, whole)
