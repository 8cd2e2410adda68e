"""Checkpoints: all that is needed to go on, whole, and the last good one always there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.factories import tiny_model
from torch import Tensor

from bertkit.errors import CheckpointError
from bertkit.families import BERT
from bertkit.training.masters import Masters
from bertkit.training.optim import adamw
from bertkit.training.state import newest_checkpoint, publish, recover, restore, save_checkpoint


def fresh(dtype: torch.dtype = torch.float32, *, seed: int = 0, hidden: int = 8) -> Masters:
    return Masters(tiny_model(20, "mlm", "nsp", seed=seed, hidden=hidden), dtype)


def optimizer(masters: Masters) -> torch.optim.AdamW:
    return adamw(masters.weights, learning_rate=0.01, weight_decay=0.1)


def learn(masters: Masters, moved: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for weight in masters.weights.values():
            weight.grad = torch.randn(weight.shape, generator=generator)
        moved.step()
        masters.update_model()


def values(masters: Masters) -> list[Tensor]:
    return [w.detach().clone() for w in masters.weights.values()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_restored_goes_on_as_if_never_stopped(dtype: torch.dtype, tmp_path: Path) -> None:
    masters = fresh(dtype)
    moved = optimizer(masters)
    learn(masters, moved, range(3))
    folder = save_checkpoint(tmp_path, 3, masters, moved, BERT, keep=2)
    learn(masters, moved, range(3, 6))

    other = fresh(dtype, seed=1)
    again = optimizer(other)
    assert restore(folder, other, again, BERT) == 3
    learn(other, again, range(3, 6))
    assert same(values(masters), values(other))
    assert same(list(masters.model.state_dict().values()), list(other.model.state_dict().values()))

    control = fresh(dtype, seed=1)  # the weights alone are not enough
    bare = optimizer(control)
    restore(folder, control, bare, BERT)
    bare.state.clear()
    learn(control, bare, range(3, 6))
    assert not same(values(masters), values(control))


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    masters = fresh()
    moved = optimizer(masters)
    for step in range(1, 5):
        learn(masters, moved, range(step, step + 1))
        publish(save_checkpoint(tmp_path, step, masters, moved, BERT, keep=2), tmp_path)
        kept = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
        assert kept == [f"step-{s:08d}" for s in range(max(1, step - 1), step + 1)]
        newest = tmp_path / "checkpoints" / kept[-1]
        assert newest_checkpoint(tmp_path) == newest
        assert (newest / "model.safetensors").samefile(tmp_path / "model.safetensors")


def test_damaged_ones_are_put_aside_and_named(tmp_path: Path) -> None:
    masters = fresh()
    moved = optimizer(masters)
    folders = []
    for step in (1, 2, 3):
        learn(masters, moved, range(step, step + 1))
        folders.append(save_checkpoint(tmp_path, step, masters, moved, BERT, keep=3))
    (folders[2] / "optimizer.safetensors").write_bytes(b"half")
    (folders[1] / "manifest.json").write_text("{", encoding="utf-8")
    good, said = recover(tmp_path)
    assert good == folders[0]
    assert said[0].startswith(f"{folders[2]}: optimizer.safetensors is damaged")
    assert said[1].startswith(f"{folders[1]}: incomplete")
    assert recover(tmp_path) == (folders[0], [])
    aside = folders[2].with_name(f"damaged-{folders[2].name}")
    assert (aside / "optimizer.safetensors").read_bytes() == b"half"
    save_checkpoint(tmp_path, 3, masters, moved, BERT, keep=1)
    assert newest_checkpoint(tmp_path) == folders[2]


def test_before_the_first_there_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert recover(tmp_path) == (None, [])


def test_none_whole_is_refused_and_left(tmp_path: Path) -> None:
    masters = fresh()
    folder = save_checkpoint(tmp_path, 1, masters, optimizer(masters), BERT, keep=1)
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="no older checkpoint is complete; remove"):
        recover(tmp_path)
    assert folder.exists()


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    masters = fresh()
    folder = save_checkpoint(tmp_path, 0, masters, optimizer(masters), BERT, keep=1)
    other = fresh(hidden=16)
    with pytest.raises(CheckpointError, match="is missing or of another shape"):
        restore(folder, other, optimizer(other), BERT)
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="cannot be read"):
        restore(folder, other, optimizer(other), BERT)
