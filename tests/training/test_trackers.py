"""Experiment trackers, with local stores only."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from bertkit.errors import ConfigError
from bertkit.training import trackers
from bertkit.training.distributed import SINGLE_PROCESS
from bertkit.training.journal import Journal
from bertkit.training.trackers import TRACKERS, Begin, Track, check_tracker, metrics_of, tracked

RECORD = {"config": {"train": {"steps": 4, "track": "x"}, "family": "bert"}, "corpus": "ab12"}


def run_in(out: Path) -> Any:
    """Return a run with the attributes that a tracker uses."""
    return SimpleNamespace(out=out, record=RECORD, journal=Journal(out), ranks=SINGLE_PROCESS)


def learn(track: Track, run: Any, steps: range) -> None:
    """Write each step to the journal, and scores after the last step."""
    with tracked(track, run, start=steps.start - 1):
        for step in steps:
            run.journal.write({"step": step, "loss": 1.0 / step, "tokens": 100})
        run.journal.write({"step": step, "held_out": {"mlm": 0.5}, "written": "a text"})


def installed(name: str) -> Any:
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"{name} is not installed"
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run directory in an isolated home directory."""
    for name in [n for n in os.environ if n.split("_")[0] in ("WANDB", "MLFLOW", "TRACKIO")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lr-1e-4").mkdir()
    return tmp_path / "lr-1e-4"


# ---- Real trackers


@installed("tensorboard")
def test_tensorboard_contains_each_step_once(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = run_in(folder)
    run.journal.write({"step": 0, "held_out": {"mlm": 9.0}})
    learn("tensorboard", run, range(1, 5))
    learn("tensorboard", run, range(3, 7))  # The run resumes after step 2.
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert [(e.step, e.value) for e in events.Scalars("held_out/mlm")] == [(0, 9.0), (6, 0.5)]
    [words] = [name for name in events.Tags()["tensors"] if "text_summary" in name]
    text = events.Tensors(words)[0].tensor_proto.string_val[0].decode()
    assert words.startswith("lr-1e-4")
    assert "| config.train.steps | 4 |" in text


@installed("wandb")
def test_wandb_resumes_the_same_run_offline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = run_in(folder)
    learn("wandb", run, range(1, 5))
    learn("wandb", run, range(3, 7))
    wandb.teardown()
    files = sorted(Path("wandb").glob("offline-run-*/run-*.wandb"))
    [tracked_id] = {file.stem.removeprefix("run-") for file in files}
    assert [r["tracked"] for r in run.journal.records() if "tracked" in r] == [tracked_id]
    first = b"".join(file.read_bytes() for file in files)
    assert b"held_out/mlm" in first
    assert b"lr-1e-4" in first


@installed("wandb")
def test_wandb_without_api_key_raises_config_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r'track = "wandb": cannot start \(UsageError: .*fix'):
        learn("wandb", run_in(folder), range(1, 3))


@installed("mlflow")
def test_mlflow_stores_one_run_locally(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlflow-skinny has no database, so the test enables the file store with two variables.
    The full mlflow package uses a SQLite file by default.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = run_in(folder)
    learn("mlflow", run, range(1, 5))
    learn("mlflow", run, range(5, 7))
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("bertkit")
    assert experiment is not None
    [kept] = client.search_runs([experiment.experiment_id])
    assert (kept.info.run_name, kept.info.status) == ("lr-1e-4", "FINISHED")
    assert kept.data.params["config.train.steps"] == "4"
    history = client.get_metric_history(kept.info.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(n, 1.0 / n) for n in range(1, 7)]
    assert kept.data.metrics["held_out/mlm"] == 0.5


# ---- trackio, replaced by a stub because it requires an older version of pillow


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the calls of a stub of trackio."""
    calls: list[Any] = []

    def init(**settings: Any) -> None:
        calls.append(settings)
        print("* where to look")

    def log(numbers: dict[str, float], step: int) -> None:
        calls.append((step, numbers))

    def finish() -> None:
        calls.append("finish")
        print("* done")

    module = SimpleNamespace(init=init, log=log, finish=finish)
    monkeypatch.setitem(sys.modules, "trackio", module)  # type: ignore[arg-type]
    return calls


def test_trackio_resumes_the_run_with_its_name(
    trackio: list[Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_in(folder)
    learn("trackio", run, range(1, 3))
    learn("trackio", run, range(3, 4))
    first, *records, end, again, third, scores, _ = trackio
    assert (first["project"], first["config"]) == ("bertkit", RECORD)
    assert first["name"].startswith("lr-1e-4-")
    assert first == again
    assert records == [
        (1, {"loss": 1.0, "tokens": 100.0}),
        (2, {"loss": 0.5, "tokens": 100.0}),
        (2, {"held_out/mlm": 0.5}),
    ]
    assert end == "finish"
    assert (third[0], scores) == (3, (3, {"held_out/mlm": 0.5}))
    assert capsys.readouterr().out == ""  # Data is written to stdout.


def test_directories_of_equal_names_are_separate_runs(trackio: list[Any], folder: Path) -> None:
    other = folder / "lr-1e-4"
    other.mkdir()
    learn("trackio", run_in(folder), range(1, 2))
    learn("trackio", run_in(other), range(1, 2))
    names = [call["name"] for call in trackio if isinstance(call, dict)]
    assert len(set(names)) == 2


# ---- Behavior of all trackers


class RecordingTracker:
    """A tracker that records steps and can fail at one of them."""

    FAILS = 0
    STEPS: ClassVar[list[Any]] = []

    def __init__(self, begin: Begin) -> None:
        self.id, self.steps = "one", self.STEPS
        if self.FAILS < 0:
            raise OSError("http://me:secret@host/?token=hidden&a=1: refused\nand more")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        if step == self.FAILS:
            raise ConnectionError("https://me:secret@host: gone")
        self.steps.append(step)

    def close(self, *, finished: bool) -> None:
        self.steps.append("finished" if finished else "stopped")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(trackers, "TRACKERS", {**TRACKERS, "wandb": RecordingTracker})
    monkeypatch.setattr(RecordingTracker, "STEPS", [])
    return RecordingTracker.STEPS


def test_failing_tracker_warns_once_without_stopping(
    logged: list[Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(RecordingTracker, "FAILS", 3)
    run = run_in(folder)
    learn("wandb", run, range(1, 10))
    assert logged == [1, 2]
    error = capsys.readouterr().err
    assert error.count("warning") == 1
    assert "stopped logging to wandb (ConnectionError: https://…@host: gone)" in error
    assert "secret" not in error
    assert [r["step"] for r in run.journal.records() if "loss" in r] == list(range(1, 10))


def test_initialization_error_hides_secrets(
    logged: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordingTracker, "FAILS", -1)
    with pytest.raises(ConfigError) as error:
        learn("wandb", run_in(folder), range(1, 3))
    assert "OSError: http://…@host/?token=…&a=1: refused)" in str(error.value)
    assert "\n" not in str(error.value)


def test_interrupted_run_is_reported_as_stopped(logged: list[Any], folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), tracked("wandb", run_in(folder), start=0):
        raise KeyboardInterrupt
    assert logged == ["stopped"]


def test_unresponsive_tracker_does_not_block_the_run(
    logged: list[Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import threading

    answers = threading.Event()
    monkeypatch.setattr(trackers, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(RecordingTracker, "log", lambda self, numbers, step: answers.wait(10))
    learn("wandb", run_in(folder), range(1, 5))
    answers.set()
    assert "wandb did not finish in" in capsys.readouterr().err


def test_late_tracker_gets_all_earlier_records(logged: list[Any], folder: Path) -> None:
    run = run_in(folder)
    learn("none", run, range(1, 3))
    assert logged == []
    learn("wandb", run, range(3, 4))
    assert logged == [1, 2, 2, 3, 3, "finished"]


def test_only_the_first_process_logs_to_trackers(logged: list[Any], folder: Path) -> None:
    run = run_in(folder)
    run.ranks = SimpleNamespace(first=False)
    with tracked("wandb", run, start=0):
        pass
    assert logged == []


def test_check_tracker_rejects_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_tracker("none", "train.track")
    with pytest.raises(ConfigError, match=r'^train.track = "mlflow" .* pip install mlflow$'):
        check_tracker("mlflow", "train.track")


def test_metrics_of_returns_finite_numbers() -> None:
    record = json.loads('{"step": 3, "loss": NaN, "tokens": 5, "scores": {"f1": 0.5}, "sha": "a"}')
    assert metrics_of(record) == {"tokens": 5.0, "scores/f1": 0.5}
