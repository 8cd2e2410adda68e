"""Distributed pretraining matches one process; a failed process loses no step and no file."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertkit import cli
from bertkit.storage import sha256

STEPS = 12


def words(world: Any, run: Path, *more: object) -> list[object]:
    parts = ("--train.parts", 4, "--model.dropout", 0.1, "--train.batch_size", 10)
    return ["pretrain", world.config, "--corpus", world.corpus, "--out", run, *parts, *more]


def losses(run: Path) -> list[dict[str, Any]]:
    lines = (run / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["step"] for r in records if "loss" in r] == list(range(1, STEPS + 1))
    assert [r["step"] for r in records if "held_out" in r] == [0, 6, 12]
    return [r for r in records if "loss" in r]


def assert_nearly_equal(run: Path, whole: Path, most: float = 1e-6) -> None:
    """Check that losses and weights differ only by rounding."""
    for actual, expected in zip(losses(run), losses(whole), strict=True):
        assert actual["loss"] == pytest.approx(expected["loss"], abs=most)
        assert actual["tokens"] == expected["tokens"]
        assert actual["mlm_accuracy"] == expected["mlm_accuracy"]
    weights = load_file(run / "model.safetensors")
    for name, weight in load_file(whole / "model.safetensors").items():
        torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def alone(world: Any, forker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    assert forker(*words(world, run)) == 0, forker.output
    return run


@pytest.fixture(scope="module")
def two(world: Any, forker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("two") / "run"
    assert forker.together(2, *words(world, run)) == [0, 0], forker.output
    assert forker.output.count(": done") == 1  # only rank 0 prints
    return run


def test_two_and_four_processes_match_one(
    world: Any, forker: Any, alone: Path, two: Path, tmp_path: Path
) -> None:
    assert_nearly_equal(two, alone)
    assert {r["slowest_rank"] for r in losses(two)} <= {0, 1}
    assert all("slowest_rank" not in r for r in losses(alone))
    assert forker.together(4, *words(world, tmp_path / "run")) == [0] * 4, forker.output
    assert_nearly_equal(tmp_path / "run", alone)


def test_control_different_parts_sample_different_dropout(
    world: Any, forker: Any, alone: Path, tmp_path: Path
) -> None:
    """The control: runs are not equal regardless of their settings."""
    assert forker(*words(world, tmp_path / "run", "--train.parts", 2)) == 0, forker.output
    with pytest.raises(AssertionError):
        assert_nearly_equal(tmp_path / "run", alone)


def test_signal_stops_all_processes_after_same_step(
    world: Any, forker: Any, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    at = {"journal": str(run / "journal.jsonl"), "lines": 3, "signal": signal.SIGTERM, "rank": 1}
    assert forker.together(2, *words(world, run), **at) == [0, 0], forker.output
    assert "which is saved; continue with --resume" in forker.output.splitlines()[-1]
    (newest, *_) = sorted((run / "checkpoints").iterdir(), reverse=True)
    assert f"stopped after step {int(newest.name.removeprefix('step-'))}" in forker.output
    at["lines"] = 8
    codes = forker.together(4, *words(world, run, "--resume", "auto"), **at)
    assert codes == [0] * 4, forker.output
    assert forker(*words(world, run, "--resume")) == 0, forker.output
    assert_nearly_equal(run, alone)


def test_killed_process_stops_all_and_run_resumes(
    world: Any, forker: Any, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = words(world, run, "--resume", "auto")
    for rank, lines in ((1, 4), (0, 7)):
        at = {"journal": str(run / "journal.jsonl"), "lines": lines, "rank": rank}
        codes = forker.together(2, *command, **at, signal=signal.SIGKILL)
        assert codes[rank] == -signal.SIGKILL
        assert codes[1 - rank] == 2, forker.output
        assert "another process of the run has stopped" in forker.output
        assert "Traceback" not in forker.output
    assert forker.together(2, *command) == [0, 0], forker.output
    assert sha256(run / "model.safetensors") == sha256(two / "model.safetensors")
    assert len(losses(run)) == STEPS


def test_nan_loss_in_one_process_stops_all_processes(
    world: Any, forker: Any, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    codes = forker.together(2, *words(world, run), rank=1, nan_at=9)
    assert codes == [2, 2], forker.output
    errors = [line for line in forker.output.splitlines() if "the loss is nan" in line]
    messages = {line.removeprefix("bertkit: ").removeprefix("rank 1: ") for line in errors}
    assert len(errors) == 2
    # Both processes report the same step.
    assert len({line.partition("; start over")[0] for line in messages}) == 1
    assert any("is the last good checkpoint" in line for line in errors)
    assert forker.together(2, *words(world, run, "--resume")) == [0, 0], forker.output
    assert sha256(run / "model.safetensors") == sha256(two / "model.safetensors")


def test_processes_with_different_settings_are_rejected(
    world: Any, forker: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    more = {"2": ["--train.seed", "3"]}
    codes = forker.together(4, *words(world, run), more=more)
    assert codes == [2] * 4
    assert "rank 2: settings or corpus differ from rank 0" in forker.output
    assert not run.exists()


def test_parts_default_to_number_of_processes(world: Any, forker: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["pretrain", world.config, "--corpus", world.corpus, "--out", run]
    at = {"journal": str(run / "journal.jsonl"), "lines": 3, "signal": signal.SIGTERM, "rank": 1}
    assert forker.together(3, *command, **at) == [0, 0, 0], forker.output
    # One process computes three parts.
    assert forker(*command, "--resume", "auto") == 0, forker.output
    assert len(losses(run)) == STEPS
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["config"]["train"]["parts"] == 3


def test_world_size_that_does_not_divide_parts_is_rejected(
    world: Any, forker: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert forker.together(3, *words(world, run)) == [2] * 3
    assert (
        "train.parts = 4 cannot be divided among 3 processes; start 2, or begin a new run with "
        "train.parts = 6"
    ) in forker.output
    assert not run.exists()


def test_full_disk_of_rank_zero_stops_all(
    world: Any, forker: Any, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    codes = forker.together(2, *words(world, run), file_bytes=60_000)
    assert codes == [2, 2], forker.output
    assert "Traceback" not in forker.output
    assert forker.together(2, *words(world, run, "--resume", "auto")) == [0, 0], forker.output
    assert sha256(run / "model.safetensors") == sha256(two / "model.safetensors")


SHARDED = ("--train.shard_optimizer", "true")


def test_sharded_optimizer_matches_and_resumes_with_any_world_size(
    world: Any, forker: Any, alone: Path, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert forker.together(2, *words(world, run, *SHARDED)) == [0, 0], forker.output
    assert sha256(run / "model.safetensors") == sha256(two / "model.safetensors")
    shards = sorted(run.glob("checkpoints/step-*12/optimizer*"))
    assert [p.name for p in shards] == [f"optimizer-0000{n}-of-00002.safetensors" for n in (1, 2)]
    (whole,) = two.glob("checkpoints/step-*12/optimizer*")
    states = [load_file(shard) for shard in shards]
    assert states[0].keys() & states[1].keys() == {"step"}
    for name, moment in load_file(whole).items():
        (shard_state, *_) = [state[name] for state in states if name in state]
        assert torch.equal(shard_state, moment)
    sizes = [shard.stat().st_size for shard in shards]
    # In a small model, the largest weight dominates.
    assert max(sizes) < 0.75 * whole.stat().st_size

    run = tmp_path / "other"  # with two, four, and one processes
    at = {"journal": str(run / "journal.jsonl"), "lines": 3, "signal": signal.SIGTERM, "rank": 1}
    assert forker.together(2, *words(world, run, *SHARDED), **at) == [0, 0], forker.output
    at["lines"] = 8
    more = (*SHARDED, "--resume", "auto")
    assert forker.together(4, *words(world, run, *more), **at) == [0] * 4, forker.output
    assert forker(*words(world, run, "--resume")) == 0, forker.output
    assert_nearly_equal(run, alone)


def test_killed_process_and_damaged_shard_lose_no_step(
    world: Any, forker: Any, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = words(world, run, *SHARDED, "--resume", "auto")
    for rank, lines in ((1, 7), (0, 10)):
        at = {"journal": str(run / "journal.jsonl"), "lines": lines, "rank": rank}
        codes = forker.together(2, *command, **at, signal=signal.SIGKILL)
        assert codes[rank] == -signal.SIGKILL
        assert codes[1 - rank] == 2, forker.output
        assert "Traceback" not in forker.output
    older, newest = sorted((run / "checkpoints").iterdir())[-2:]
    shard = newest / "optimizer-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert forker.together(2, *command) == [0, 0], forker.output
    assert f"{newest}: {shard.name} is damaged" in forker.output
    assert f"resuming after step {int(older.name.removeprefix('step-'))}" in forker.output
    assert sha256(run / "model.safetensors") == sha256(two / "model.safetensors")
    assert len(losses(run)) == STEPS


def test_full_disk_of_another_rank_is_reported(
    world: Any, forker: Any, two: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    codes = forker.together(2, *words(world, run, *SHARDED), file_bytes=20_000, rank=1)
    assert codes == [2, 2], forker.output
    assert "rank 1 could not write its shard of step" in forker.output
    assert re.search(r"rank 1: .*: cannot be written .*File too large", forker.output)
    assert "Traceback" not in forker.output
    assert not [*run.glob("checkpoints/step-*")]
    resumed = words(world, run, *SHARDED, "--resume", "auto")
    assert forker.together(2, *resumed) == [0, 0], forker.output
    assert sha256(run / "model.safetensors") == sha256(two / "model.safetensors")


def test_existing_run_directory_is_rejected_by_all(world: Any, forker: Any, two: Path) -> None:
    codes = forker.together(2, *words(world, two))
    assert codes == [2, 2]
    assert f"{two} already exists; choose another --out" in forker.output
    assert "Traceback" not in forker.output


def test_other_commands_reject_torchrun(run_rejected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert "torchrun supports only `pretrain` and `finetune`" in run_rejected("info")


def test_incomplete_torchrun_environment_is_rejected(
    world: Any, run_rejected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job scheduler may set WORLD_SIZE without starting other processes."""
    monkeypatch.delenv("RANK", raising=False)
    for size in ("2", "many"):
        monkeypatch.setenv("WORLD_SIZE", size)
        message = run_rejected(*words(world, tmp_path / "run"))
        assert "use torchrun, or unset WORLD_SIZE" in message
    assert not (tmp_path / "run").exists()


def test_more_parts_than_samples_are_rejected(
    world: Any, run_rejected: Any, tmp_path: Path
) -> None:
    message = run_rejected(*words(world, tmp_path / "run", "--train.batch_size", 3))
    assert "parts must be at most the batch size of 3, got 4" in message
    assert cli.run([str(w) for w in words(world, tmp_path / "run", "--train.steps", 4)]) == 0
