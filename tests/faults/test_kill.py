"""A run killed at any moment goes on to the same weights, bit for bit, and loses nothing."""

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

STEPS, KEPT = 12, 2


@pytest.fixture(scope="module")
def whole(world: Any, forker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    code = forker("pretrain", world.config, "--corpus", world.corpus, "--out", run)
    assert code == 0, forker.said
    return run


def go_on(world: Any, forker: Any, run: Path) -> None:
    """Resume, or begin where the kill came before the run was one."""
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    code = forker(*argv, "--resume")
    if code == 2 and "contains no run to resume" in forker.said:
        code = forker(*argv)
    assert code == 0, forker.said


def same(run: Path, whole: Path) -> None:
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")
    assert journal(run) == journal(whole)
    assert (run / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    steps = sorted(p.name for p in (run / "checkpoints").iterdir() if p.name.startswith("step-"))
    assert steps == [f"step-{STEPS - 2:08d}", f"step-{STEPS:08d}"]
    assert not [p for p in run.rglob("*") if ".partial-" in p.name]


def journal(run: Path) -> list[dict[str, Any]]:
    """Every line, without what the clock says."""
    text = (run / "journal.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    records = [json.loads(line) for line in text.splitlines()]
    clock = ("tokens_per_second", "data_wait", "peak_memory")
    return [{k: v for k, v in r.items() if k not in clock} for r in records]


def test_the_journal_has_each_step_once(whole: Path) -> None:
    records = journal(whole)
    assert [r["step"] for r in records if "loss" in r] == list(range(1, STEPS + 1))
    assert [r["step"] for r in records if "held_out" in r] == [0, 6, 12]


# the first 30 make the run, then about 20 a checkpoint; primes, so that every kind is met
FEW, MORE = (1, 9, 23, 37, 53, 79), (4, 16, 31, 43, 67, 97)
"""The write before which it is killed."""


@pytest.mark.parametrize("write", [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_killed_before_a_write(
    write: int, world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    assert forker(*argv, at_write=write) == -signal.SIGKILL, forker.said
    go_on(world, forker, run)
    same(run, whole)


def test_killed_again_and_again(world: Any, forker: Any, whole: Path, tmp_path: Path) -> None:
    chance = random.Random(7)
    run = tmp_path / "run"
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    codes = []
    for line in (2, 4, 6, 9, 11):
        codes.append(
            forker(
                *argv,
                *(["--resume"] if codes else []),
                signal=signal.SIGKILL,
                journal=str(run / "journal.jsonl"),
                lines=line,
                delay=chance.uniform(0.0, 0.03),
            )
        )
    assert codes.count(-signal.SIGKILL) >= 3, codes
    go_on(world, forker, run)
    same(run, whole)


def test_interrupt_saves_and_says_how_to_go_on(
    world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    at = {"journal": str(run / "journal.jsonl"), "lines": 4}
    assert forker(*argv, signal=signal.SIGINT, **at) == 130, forker.said
    assert "which is saved; continue with --resume" in forker.said.splitlines()[-1]
    assert "Traceback" not in forker.said
    newest = max((run / "checkpoints").iterdir()).name
    assert f"stopped after step {int(newest.removeprefix('step-'))}" in forker.said
    go_on(world, forker, run)
    same(run, whole)


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
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
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
    go_on(world, forker, run)
    assert f"{newest}: {reason}" in forker.said
    assert f"resuming after step {STEPS - KEPT}" in forker.said
    same(run, whole)


def test_a_damaged_checkpoint_never_displaces_a_good_one(
    world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    """With one kept, the damaged newest must not count as it."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    lose_manifest(run / "checkpoints" / f"step-{STEPS:08d}")
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run, "--resume"]
    settings = ["--train.keep", "1", "--train.save_every", "1"]
    at = {"journal": str(run / "journal.jsonl"), "lines": STEPS + 2}
    forker(*argv, *settings, signal=signal.SIGKILL, **at)
    whole_ones = [p for p in (run / "checkpoints").glob("step-*") if (p / "manifest.json").exists()]
    assert whole_ones
    go_on(world, forker, run)
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")


def test_no_whole_checkpoint_is_said_and_nothing_removed(
    world: Any, forker: Any, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for folder in (run / "checkpoints").iterdir():
        lose_manifest(folder)
    before = sorted(run.rglob("*"))
    argv = ["pretrain", world.config, "--corpus", world.corpus, "--out", run, "--resume"]
    assert forker(*argv) == 2
    assert "no older checkpoint is complete" in forker.said.splitlines()[-1]
    assert sorted(run.rglob("*")) == before
