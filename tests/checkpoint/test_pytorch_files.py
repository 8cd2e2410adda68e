"""PyTorch weight files load without running code."""

from __future__ import annotations

import json
import os
import pickle
import random
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.checkpoint import pytorch_files
from bertkit.checkpoint.pytorch_files import read_pytorch
from bertkit.checkpoint.weights import read_tensors
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
def test_tensors_equal_saved_tensors(is_zip: bool, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=is_zip)
    found = read_pytorch(path)
    assert list(found) == list(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_tensors_of_one_storage_load(tmp_path: Path) -> None:
    shared = torch.arange(12.0).view(3, 4)
    torch.save({"embedding": shared, "decoder": shared, "row": shared[1]}, tmp_path / "a.bin")
    found = read_pytorch(tmp_path / "a.bin")
    assert torch.equal(found["embedding"], shared)
    assert torch.equal(found["decoder"], shared)
    assert torch.equal(found["row"], shared[1])


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_forbidden_objects_are_rejected_without_running(is_zip: bool, tmp_path: Path) -> None:
    path, target = tmp_path / "pytorch_model.bin", tmp_path / "created"
    attack = {"a": Attack(target)}
    torch.save(attack, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(CheckpointError, match=r"refers to (posix|os)\.mkdir, which"):
        read_pytorch(path)
    assert not target.exists()
    # The control: the attack runs without the protection.
    torch.load(path, weights_only=False)
    assert target.exists()


def test_plain_pickle_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Attack(tmp_path / "created")))
    with pytest.raises(
        CheckpointError, match=r"model\.pkl: (its pickle refers to|not a readable)"
    ) as error:
        read_pytorch(path)
    assert "weights_only" not in str(error.value)
    assert not (tmp_path / "created").exists()


def test_module_is_rejected_by_its_class(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(
        CheckpointError, match=r"refers to torch\.nn\.modules\.linear\.Linear, which"
    ):
        read_pytorch(path)


def test_archive_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(WEIGHTS, path)
    monkeypatch.setattr(pytorch_files, "MAX_PICKLE_BYTES", 10)
    with pytest.raises(CheckpointError, match=r"data\.pkl has more than 10 bytes"):
        read_pytorch(path)


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
        ({"a": torch.zeros(1).expand(1 << 40)}, "a: the shape requires more values than the file"),
        ({"a": torch.empty(3, device="meta")}, "a: the tensor has no values"),
    ],
    ids=["list", "numbers", "no tensor", "sparse", "expanded", "meta"],
)
def test_other_content_is_rejected(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=message):
        read_pytorch(path)


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a readable state dict .*No such file"):
        read_pytorch(tmp_path / "pytorch_model.bin")


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize(
    "count", [60, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_damaged_files_load_or_are_rejected(is_zip: bool, count: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(WEIGHTS, path, _use_new_zipfile_serialization=is_zip)
    content, chance = path.read_bytes(), random.Random(count)
    messages = []
    for _ in range(count):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        try:
            found = read_tensors(tmp_path)
        except CheckpointError as error:
            messages.append(str(error))
        else:
            assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())
    assert len(messages) > count / 4
    assert not any("weights_only" in message for message in messages)


def save_as_bin(folder: Path, name: str | None = "pytorch_model.bin") -> None:
    """Replace the safetensors file of a model directory by a file of PyTorch, or by two shards."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if name is not None:
        torch.save(weights, folder / name)
        return
    shards = {
        "pytorch_model-1.bin": sorted(weights)[::2],
        "pytorch_model-2.bin": sorted(weights)[1::2],
    }
    for file, names in shards.items():
        torch.save({name: weights[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in shards.items() for name in names}
    index = json.dumps({"weight_map": weight_map})
    (folder / "pytorch_model.bin.index.json").write_text(index, encoding="utf-8")


@pytest.mark.parametrize("name", ["pytorch_model.bin", None, "pytorch_model.pt", "best_model.pth"])
def test_model_loads_from_pytorch_files(name: str | None, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer("abcde")
    folder = tiny_folder(tmp_path / "model", tokenizer, "mlm", "nsp", spread=0.2)
    texts = ["a b c", "d [MASK]"]
    expected = bertkit.pipeline("embed", folder)(texts)
    save_as_bin(folder, name)
    torch.save({"step": torch.ones(1)}, folder / "optimizer.pt")  # not a weight file
    np.testing.assert_array_equal(bertkit.pipeline("embed", folder)(texts), expected)
    report = bertkit.load(folder).report
    assert report.fresh == report.unused == ()


def test_several_weight_files_are_named(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", tiny_tokenizer("abcde"), "mlm")
    save_as_bin(folder, "model.pt")
    shutil.copy(folder / "model.pt", folder / "best_model.pt")
    with pytest.raises(CheckpointError, match=r"several weights: best_model\.pt, model\.pt; keep"):
        bertkit.load(folder)
    shutil.copy(folder / "model.pt", folder / "pytorch_model.bin")
    bertkit.load(folder)


def test_copy_with_safetensors_is_suggested_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tiny_tokenizer("abcde")
    bertkit.load(tiny_folder(tmp_path / "safe", tokenizer, "mlm"))
    assert capsys.readouterr().err == ""
    folder = tiny_folder(tmp_path / "it's $(a) model", tokenizer, "mlm")
    save_as_bin(folder)
    expected = bertkit.load(folder).model.state_dict()
    message = capsys.readouterr().err
    bertkit.load(folder)
    assert capsys.readouterr().err == ""
    (line,) = message.splitlines()
    assert line.startswith(f"{folder}: the weights are PyTorch files; ")
    # The command in the message writes a copy with the same weights.
    command = shlex.split(line.partition(", run ")[2])
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True)
    assert (tmp_path / "copy" / "model.safetensors").exists()
    for name, tensor in bertkit.load(tmp_path / "copy").model.state_dict().items():
        assert torch.equal(tensor, expected[name])
