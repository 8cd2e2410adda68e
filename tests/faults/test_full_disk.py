"""A full disk: one message, no partial checkpoint, and the run resumes once space is free."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bertkit import cli
from bertkit.storage import sha256


def words(world: Any, run: Path, *more: object) -> list[str]:
    command = ["pretrain", world.config, "--corpus", world.corpus, "--out", run, *more]
    return [str(word) for word in [*command, "--train.steps", 6]]


@pytest.fixture(scope="module")
def whole(world: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)  # the number of threads changes the last bits of results
    run = tmp_path_factory.mktemp("whole") / "run"
    assert cli.run(words(world, run)) == 0
    return run


class Full:
    """System call that fails like on a full disk after some calls."""

    def __init__(self, original: Any, after: int) -> None:
        self.original, self.left = original, after

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.original(*arguments, **options)


# A run calls fsync 12 times before its first step, then 9 times per checkpoint.
@pytest.mark.parametrize(("call", "after"), [("fsync", 0), ("fsync", 5), ("fsync", 26)])
def test_full_disk_keeps_checkpoints_and_run_resumes(
    call: str,
    after: int,
    world: Any,
    run_rejected: Any,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, call, Full(getattr(os, call), after))
        assert "the disk is full and the old file is unchanged" in run_rejected(*words(world, run))
    assert not [p for p in run.rglob("*") if ".partial-" in p.name]
    for folder in (run / "checkpoints").glob("step-*"):
        assert (folder / "manifest.json").exists()
    has_started = (run / "run.json").exists()
    assert has_started == (after > 0)
    assert cli.run(words(world, run, *(["--resume"] if has_started else []))) == 0
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")


def test_full_disk_message_contains_last_good_checkpoint(
    world: Any, run_rejected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(os, "fsync", Full(os.fsync, 26))
    message = run_rejected(*words(world, run))
    good = max((run / "checkpoints").glob("step-*"))
    assert f"{good} is the last good checkpoint" in message


def test_file_size_limit_is_reported(world: Any, forker: Any, whole: Path, tmp_path: Path) -> None:
    """The kernel rejects the write inside the library that saves tensors."""
    run = tmp_path / "run"
    assert forker(*words(world, run), file_bytes=150_000) == 2, forker.output
    message = forker.output.splitlines()[-1]
    assert "step-00000002: cannot be written (" in message
    assert "nothing was saved yet" in message
    assert not list((run / "checkpoints").iterdir())
    assert forker(*words(world, run, "--resume")) == 0, forker.output
    assert sha256(run / "config.json") == sha256(whole / "config.json")
    assert (run / "checkpoints" / "step-00000006" / "manifest.json").exists()


def test_run_completes_without_hard_links(
    world: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    run = tmp_path / "run"
    assert cli.run(words(world, run)) == 0
    assert sha256(run / "model.safetensors") == sha256(whole / "model.safetensors")


def test_embed_reports_full_disk(
    world: Any, run_rejected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "vectors.npy"
    monkeypatch.setattr(os, "fsync", Full(os.fsync, 0))
    message = run_rejected("embed", world.model, "a text", "--out", out)
    assert f"{out}: the disk is full" in message
    assert not list(tmp_path.iterdir())
