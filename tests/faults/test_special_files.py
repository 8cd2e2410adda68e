"""Special files in model and run directories: bertkit rejects them instead of waiting for them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bertkit.checkpoint.adapter import read_adapter
from bertkit.checkpoint.directory import load
from bertkit.checkpoint.run_directory import warn_unfinished
from bertkit.checkpoint.weights import read_file
from bertkit.errors import BertkitError
from bertkit.training.journal import Journal
from bertkit.view.runs import read_run


def pipe(path: Path) -> None:
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 43)


SPECIAL = [pipe, directory, sparse]


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_load_rejects_special_file(
    name: str, special: Callable[[Path], None], tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    load(folder)
    (folder / name).unlink()
    special(folder / name)
    with pytest.raises(BertkitError, match=name):
        load(folder)


@pytest.mark.parametrize("special", SPECIAL)
def test_adapter_rejects_special_file(special: Callable[[Path], None], tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    settings = {"peft_type": "LORA", "lora_alpha": 1, "base_model_name_or_path": str(base)}
    (adapter / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    special(adapter / "adapter_model.safetensors")
    for read in (
        lambda: read_adapter(adapter),
        lambda: read_file(adapter / "adapter_model.safetensors", ""),
    ):
        with pytest.raises(BertkitError, match=r"adapter_model\.safetensors"):
            read()


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", ["run.json", "journal.jsonl"])
def test_run_rejects_special_file(
    name: str, special: Callable[[Path], None], tmp_path: Path
) -> None:
    run = {"config": {"train": {"steps": 3}}}
    (tmp_path / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (tmp_path / "journal.jsonl").write_text('{"step": 1, "loss": 2}\n', encoding="utf-8")
    warn_unfinished(tmp_path)
    read_run(tmp_path)
    (tmp_path / name).unlink()
    special(tmp_path / name)
    for read in (warn_unfinished, read_run):
        with pytest.raises(BertkitError, match=name):
            read(tmp_path)
    if name == "journal.jsonl":
        with pytest.raises(BertkitError, match=name):
            Journal(tmp_path).records()
