"""Run directories: locking, resuming, checkpoints, and error messages."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
import torch
from tests.factories import tiny_model

from bertkit.errors import CheckpointError, ConfigError, DataError, StorageError, TrainingError
from bertkit.families import BERT
from bertkit.training.checkpoints import Snapshot, State
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import adamw
from bertkit.training.run import Run, recover

RECORD: dict[str, Any] = {
    "config": {"rate": 1, "keep": 2, "teacher": None},
    "data": {"train": {"sha256": "a"}},
    "place": "here",
}


def state() -> State:
    masters = Masters(tiny_model(20, "mlm", hidden=8), torch.float32)
    return State(masters, adamw(masters.weights, learning_rate=0.01, weight_decay=0.1), BERT)


def update(state: State) -> None:
    for weight in state.masters.weights.values():
        weight.grad = torch.ones_like(weight)
    state.optimizer.step()


def started_run(out: Path) -> Run:
    run = Run(out, resume=False)
    run.check(RECORD)
    assert run.begin(state(), 9) == 0
    return run


def save_steps(out: Path, steps: int, *, keep: int) -> list[Path]:
    """Return the checkpoints of the first steps."""
    run = started_run(out)
    folders = []
    with run.learning("learning", start=0):
        for step in range(1, steps + 1):
            update(run.state)
            run.save(step, keep=keep)
            run.wait_for_save()
            assert run.checkpoint is not None
            folders.append(run.checkpoint)
    return folders


def test_run_rejects_existing_and_unresumable_directories(tmp_path: Path) -> None:
    started_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"already exists.*resume=True"):
        Run(tmp_path / "run", resume=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for name in ("none", "other"):
        with pytest.raises(ConfigError, match="contains no run to resume"):
            Run(tmp_path / name, resume=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"config": {**RECORD["config"], "rate": 2}},
      r"^rate \(was 1\): changed since .* same settings and version of bertkit"),
     ({"config": {**RECORD["config"], "teacher": {"name": "b"}}}, r"teacher \(was None\)"),
     ({"teacher": "b"}, r"teacher \(was not set\)"), ({"config": {"rate": 1}}, r"keep \(was 2\)")],
)  # fmt: skip
def test_resume_rejects_changed_settings(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    started_run(tmp_path / "run")
    resumed = Run(tmp_path / "run", resume=True)
    resumed.check(RECORD)
    with pytest.raises(ConfigError, match=message):
        resumed.check({**RECORD, **change})


def test_resume_allows_free_settings_and_custom_errors(tmp_path: Path) -> None:
    started_run(tmp_path / "run")
    resumed = Run(tmp_path / "run", resume=True)
    changed = {**RECORD, "config": {**RECORD["config"], "keep": 3}, "place": "there"}
    resumed.check(changed, free=("config.keep", "place"))
    resumed.begin(state(), 9)
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8")) == changed
    other = {**changed, "data": {"train": {"sha256": "b"}}}
    with pytest.raises(DataError, match="other rows"):
        resumed.check(other, errors={"data.train.sha256": DataError("other rows")})


@pytest.mark.parametrize("content", ["[]", "{}", '{"config": 3}'])
def test_damaged_run_record_is_reported(content: str, tmp_path: Path) -> None:
    started_run(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.json: damaged"):
        Run(tmp_path / "run", resume=True).check(RECORD)


def test_rotation_keeps_the_newest_checkpoints(tmp_path: Path) -> None:
    run = started_run(tmp_path)
    for step in range(1, 5):
        update(run.state)
        run.save(step, keep=2, show=lambda checkpoint, weights: run.publish(checkpoint))
        run.wait_for_save()
        kept = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
        assert kept == [f"step-{s:08d}" for s in range(max(1, step - 1), step + 1)]
        assert run.checkpoint == tmp_path / "checkpoints" / kept[-1]
        assert (run.checkpoint / "model.safetensors").samefile(tmp_path / "model.safetensors")


def delay_saves(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None) -> Event:
    """Make checkpoints wait for an event before they are written."""
    go, write = Event(), Snapshot.write

    def waiting(snapshot: Snapshot, folder: Path) -> None:
        assert go.wait(60)
        then()
        write(snapshot, folder)

    monkeypatch.setattr(Snapshot, "write", waiting)
    return go


def test_background_save_writes_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = delay_saves(monkeypatch)
    run = started_run(tmp_path)
    update(run.state)
    then = {name: weight.clone() for name, weight in run.state.learned.items()}
    run.save(1, keep=1)
    update(run.state)
    assert run.checkpoint is None
    go.set()
    run.wait_for_save()
    assert run.state.restore(tmp_path / "checkpoints" / "step-00000001") == 1
    assert all(torch.equal(weight, then[name]) for name, weight in run.state.learned.items())


@pytest.mark.parametrize("when", ["the next step", "the end", "the next save"])
def test_failed_save_raises_storage_error(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "no space")

    (first,) = save_steps(tmp_path, 1, keep=2)
    run = Run(tmp_path, resume=True)
    run.check(RECORD)
    run.begin(state(), 9)
    go = delay_saves(monkeypatch, full)

    def train_and_save() -> None:
        with run.learning("learning", start=1):
            run.save(2, keep=2)
            go.set()
            if when == "the next save":
                run.save(3, keep=2)
            while when == "the next step":
                run.show(3, "")

    with pytest.raises(StorageError, match=f"the disk is full.*; {first} is the last good"):
        train_and_save()
    assert recover(tmp_path) == (first, [])


def test_stop_waits_for_its_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = delay_saves(monkeypatch)
    run = started_run(tmp_path)
    run.save(1, keep=1)
    Timer(0.1, go.set).start()
    with pytest.raises(KeyboardInterrupt, match="stopped after step 1, which is saved"):
        run.stop(1)
    assert recover(tmp_path)[0] == run.checkpoint


def test_run_rejects_a_second_process(tmp_path: Path) -> None:
    run = started_run(tmp_path)
    other = Run(tmp_path, resume=True)
    other.check(RECORD)
    with pytest.raises(ConfigError, match="another process is training in"):
        other.begin(state(), 9)
    with run.learning("learning", start=0):
        pass
    assert other.begin(state(), 9) == 0


def test_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    run = started_run(tmp_path)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        with run.learning("learning", start=0):
            pass
        other = Run(tmp_path, resume=True)
        other.check(RECORD)
        assert other.begin(state(), 9) == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_open_copies_of_descriptors_do_not_keep_lock(tmp_path: Path) -> None:
    run = started_run(tmp_path)
    handles = [int(link.name) for link in Path("/proc/self/fd").iterdir()]
    copies = [os.dup(handle) for handle in handles if opens(handle, tmp_path)]
    assert copies
    with run.learning("learning", start=0):
        pass
    other = Run(tmp_path, resume=True)
    other.check(RECORD)
    assert other.begin(state(), 9) == 0
    for copy in copies:
        os.close(copy)


def opens(handle: int, path: Path) -> bool:
    """Return whether a file descriptor is open and leads to a path."""
    link = f"/proc/self/fd/{handle}"
    return os.path.lexists(link) and os.readlink(link) == str(path)


def test_damaged_checkpoints_are_renamed_and_reported(tmp_path: Path) -> None:
    folders = save_steps(tmp_path, 3, keep=3)
    (folders[2] / "optimizer.safetensors").write_bytes(b"half")
    (folders[1] / "manifest.json").write_text("{", encoding="utf-8")
    good, sentences = recover(tmp_path)
    assert good == folders[0]
    assert sentences[0].startswith(f"{folders[2]}: optimizer.safetensors is damaged")
    assert sentences[1].startswith(f"{folders[1]}: incomplete")
    assert recover(tmp_path) == (folders[0], [])
    aside = folders[2].with_name(f"damaged-{folders[2].name}")
    assert (aside / "optimizer.safetensors").read_bytes() == b"half"
    resumed = Run(tmp_path, resume=True)
    resumed.check(RECORD)
    assert resumed.begin(state(), 9) == 1
    resumed.save(3, keep=1)
    resumed.wait_for_save()
    assert resumed.checkpoint == folders[2]


def test_recover_keeps_files_without_a_complete_checkpoint(tmp_path: Path) -> None:
    assert recover(tmp_path) == (None, [])
    (folder,) = save_steps(tmp_path, 1, keep=1)
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no older checkpoint is complete; remove"):
        recover(tmp_path)
    assert folder.exists()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [(TrainingError("step 3: no number"), TrainingError, r"no number; {} is the last good"),
     (MemoryError(), TrainingError, r"out of memory: lower max_batch_tokens.*; {} is the last"),
     (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), TrainingError,
      r"out of memory.*; {} is the last good checkpoint"),
     (RuntimeError("shapes differ"), RuntimeError, "^shapes differ$")],
)  # fmt: skip
def test_training_error_names_the_last_checkpoint(
    error: Exception, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    run = started_run(tmp_path / "run")
    run.save(1, keep=1)
    run.wait_for_save()
    folder = run.checkpoint
    with pytest.raises(kind, match=message.format(folder)), run.learning("learning", start=0):
        raise error
    run.best = "the folder holds epoch 2"
    if kind is TrainingError:
        with pytest.raises(kind, match=r"; the folder holds epoch 2$"), run.learning("", start=0):
            raise error


@pytest.mark.parametrize("discard", [True, False])
def test_empty_run_directory_is_removed_on_error(discard: bool, tmp_path: Path) -> None:
    run = started_run(tmp_path / "run")
    with (
        pytest.raises(TrainingError, match="no number; nothing was saved yet"),
        run.learning("learning", start=0, discard=discard),
    ):
        raise TrainingError("no number")
    assert run.out.exists() == (not discard)


def test_repaired_settings_file_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        (tmp_path / "run" / name).write_text("old", encoding="utf-8")
    run = Run(tmp_path / "new", resume=False)
    run.out = tmp_path / "run"
    with run.repairing():
        (run.out / "config.json").write_text("new", encoding="utf-8")
        (run.out / "model.safetensors").write_text("new", encoding="utf-8")
    message_text = capsys.readouterr().err.replace("\n", "")
    assert "config.json: repaired a damaged file" in message_text
    assert "vocab.txt" not in message_text
    assert "model.safetensors" not in message_text
