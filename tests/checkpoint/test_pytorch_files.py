"""PyTorch files give their tensors, and nothing in them runs."""

from __future__ import annotations

import os
import pickle
import random
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from bertkit.checkpoint.pytorch_files import read_pytorch
from bertkit.errors import CheckpointError

WEIGHTS = OrderedDict(
    [
        ("encoder.weight", torch.arange(12.0).view(3, 4)),
        ("encoder.bias", torch.ones(4, dtype=torch.float16)),
        ("transposed", torch.arange(6.0).view(2, 3).T),
        ("steps", torch.tensor(3)),
    ]
)


class Attack:
    """An object whose unpickling would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("is_nested", [False, True], ids=["flat", "in state_dict"])
def test_tensors_equal_saved_tensors(is_zip: bool, is_nested: bool, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    content = {"state_dict": WEIGHTS, "epoch": 3} if is_nested else WEIGHTS
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    found = read_pytorch(path)
    assert list(found) == list(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_forbidden_objects_are_named_and_do_not_run(is_zip: bool, tmp_path: Path) -> None:
    path, target = tmp_path / "pytorch_model.bin", tmp_path / "created"
    attack = {"a": Attack(target)}
    torch.save(attack, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(CheckpointError, match=r"refers to (posix|os)\.mkdir, which"):
        read_pytorch(path)
    assert not target.exists()
    torch.load(path, weights_only=False)  # the control: without the protection it runs
    assert target.exists()


def test_plain_pickle_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Attack(tmp_path / "created")))
    with pytest.raises(CheckpointError, match=r"model\.pkl: "):
        read_pytorch(path)
    assert not (tmp_path / "created").exists()


def test_zip_bomb_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(1 << 20)}, path)
    bomb = tmp_path / "bomb.bin"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as out:
        for entry in source.infolist():
            out.writestr(entry.filename, source.read(entry))
    assert bomb.stat().st_size < path.stat().st_size / 50
    with pytest.raises(CheckpointError, match="is compressed"):
        read_pytorch(bomb)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "not a state dict"),
        ({3: torch.ones(2)}, "not a state dict"),
        ({"a": 3}, "a: not a dense tensor"),
        ({"a": torch.eye(2).to_sparse()}, "a: not a dense tensor"),
        ({"a": torch.zeros(1).expand(1 << 40)}, "a: its shape exceeds its values"),
        ({"a": torch.empty(3, device="meta")}, "a: a tensor without values"),
    ],
    ids=["list", "numbers", "no tensor", "sparse", "expanded", "meta"],
)
def test_other_content_is_rejected(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=message):
        read_pytorch(path)


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not found"):
        read_pytorch(tmp_path / "pytorch_model.bin")


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize(
    "count", [60, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_damaged_files_load_or_are_rejected(is_zip: bool, count: int, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=is_zip)
    content, chance = path.read_bytes(), random.Random(count)
    rejected = 0
    for _ in range(count):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        try:
            read_pytorch(path)
        except CheckpointError:
            rejected += 1
    assert rejected > count / 4
