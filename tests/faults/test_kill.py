"""A pretraining run killed at any moment resumes to bitwise identical weights."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertkit.storage import sha256

STEPS, NUM_KEPT = 12, 2


@pytest.fixture(scope="module")
def whole(world: Any, forker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("whole") / "run"
    code = forker("pretrain", world.config, "--corpus", world.corpus, "--out", run)
    assert code == 0, forker.output
    return run


def resume(world: Any, forker: Any, run: Path) -> None:
    """Resume the run, or start it if it was killed before it was created."""
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    code = forker(*argv, "--resume")
    if code == 2 and "contains no run to resume" in forker.output:
        code = forker(*argv)
    assert code == 0, forker.output


def assert_same_run(run: Path, whole: Path) -> None:
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")
    assert journal(run) == journal(whole)
    assert (run / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    steps = sorted(p.name for p in (run / "checkpoints").iterdir() if p.name.startswith("step-"))
    assert steps == [f"step-{STEPS - 2:08d}", f"step-{STEPS:08d}"]
    assert not [p for p in run.rglob("*") if ".partial-" in p.name]


def journal(run: Path) -> list[dict[str, Any]]:
    """Return all records without time and memory measurements."""
    text = (run / "journal.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    records = [json.loads(line) for line in text.splitlines()]
    clock = ("tokens_per_second", "data_wait", "peak_memory")
    return [{k: v for k, v in r.items() if k not in clock} for r in records]


def test_journal_contains_each_step_once(whole: Path) -> None:
    records = journal(whole)
    assert [r["step"] for r in records if "loss" in r] == list(range(1, STEPS + 1))
    assert [r["step"] for r in records if "held_out" in r] == [0, 6, 12]


# The run directory takes the first 30 writes, and each checkpoint about 20. Most numbers are
# primes, so that every type of write occurs.
FEW, MORE = (1, 9, 23, 37, 53, 79), (4, 16, 31, 43, 67, 97)
"""Index of the write before which the process is killed."""


@pytest.mark.parametrize("write", [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_run_killed_before_write_resumes(
    write: int, world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    assert forker(*argv, at_write=write) == -signal.SIGKILL, forker.output
    resume(world, forker, run)
    assert_same_run(run, whole)


def test_run_killed_repeatedly_resumes(
    world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    chance = random.Random(7)
    run = tmp_path / "run"
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    codes = []
    for line in (2, 4, 6, 9, 11):
        codes.append(
            forker(*argv, *(["--resume"] if codes else []), signal=signal.SIGKILL,
                   journal=str(run / "journal.jsonl"), lines=line, delay=chance.uniform(0.0, 0.03)),
        )  # fmt: skip
    assert codes.count(-signal.SIGKILL) >= 3, codes
    resume(world, forker, run)
    assert_same_run(run, whole)


def test_interrupt_saves_checkpoint_and_reports_how_to_resume(
    world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    at = {"journal": str(run / "journal.jsonl"), "lines": 4}
    assert forker(*argv, signal=signal.SIGINT, **at) == 130, forker.output
    assert "which is saved; continue with --resume" in forker.output.splitlines()[-1]
    assert "Traceback" not in forker.output
    newest = max((run / "checkpoints").iterdir()).name
    assert f"stopped after step {int(newest.removeprefix('step-'))}" in forker.output
    resume(world, forker, run)
    assert_same_run(run, whole)


def flip(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.unlink()  # a hard link of the run's own weights
    path.write_bytes(data)


def truncate(folder: Path) -> None:
    path = folder / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip, "model.safetensors is damaged"),
        (truncate, "optimizer.safetensors is damaged"),
        (lose_manifest, "incomplete"),
    ],
)
def test_resume_skips_damaged_checkpoint(
    damage: Callable[[Path], None],
    reason: str,
    world: Any,
    forker: Any,
    whole: Path,
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    newest = run / "checkpoints" / f"step-{STEPS:08d}"
    damage(newest)
    resume(world, forker, run)
    assert f"{newest}: {reason}" in forker.output
    assert f"resuming after step {STEPS - NUM_KEPT}" in forker.output
    assert_same_run(run, whole)


def test_damaged_checkpoint_never_replaces_valid_checkpoint(
    world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    """If one checkpoint is kept, a damaged newest checkpoint must not count."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    lose_manifest(run / "checkpoints" / f"step-{STEPS:08d}")
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run, "--resume"]
    settings = ["--train.keep", "1", "--train.save_every", "1"]
    at = {"journal": str(run / "journal.jsonl"), "lines": STEPS + 2}
    forker(*argv, *settings, signal=signal.SIGKILL, **at)
    complete = [p for p in (run / "checkpoints").glob("step-*") if (p / "manifest.json").exists()]
    assert complete
    resume(world, forker, run)
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")


def test_resume_rejects_run_without_complete_checkpoint(
    world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for folder in (run / "checkpoints").iterdir():
        lose_manifest(folder)
    before = sorted(run.rglob("*"))
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run, "--resume"]
    assert forker(*argv) == 2
    assert "no older checkpoint is complete" in forker.output.splitlines()[-1]
    assert sorted(run.rglob("*")) == before
