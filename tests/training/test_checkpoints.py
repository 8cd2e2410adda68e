"""Saved training states, their restoration, and damaged checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.factories import tiny_model
from torch import Tensor

from bertkit.errors import CheckpointError
from bertkit.families import BERT
from bertkit.storage import sha256, write_json
from bertkit.training.checkpoints import State, find_damage
from bertkit.training.master_weights import TOKENS, Masters
from bertkit.training.optimizer import adamw


def new_state(dtype: torch.dtype = torch.float32, *, seed: int = 0, hidden: int = 8) -> State:
    masters = Masters(tiny_model(20, "mlm", "nsp", seed=seed, hidden=hidden), dtype)
    return State(masters, adamw(masters.weights, learning_rate=0.01, weight_decay=0.1), BERT)


def train_steps(state: State, seeds: range) -> None:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for weight in state.masters.weights.values():
            weight.grad = torch.randn(weight.shape, generator=generator)
        state.optimizer.step()
        state.masters.update_model()


def values(state: State) -> list[Tensor]:
    return [w.detach().clone() for w in state.masters.weights.values()]


def all_equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_restored_state_continues_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    state = new_state(dtype)
    train_steps(state, range(3))
    state.snapshot(3).write(tmp_path)
    train_steps(state, range(3, 6))

    restored = new_state(dtype, seed=1)
    assert restored.restore(tmp_path) == 3
    train_steps(restored, range(3, 6))
    assert all_equal(values(state), values(restored))
    models = (list(item.masters.model.state_dict().values()) for item in (state, restored))
    assert all_equal(*models)

    control = new_state(dtype, seed=1)  # Without the optimizer state, the weights differ.
    control.restore(tmp_path)
    control.optimizer.state.clear()
    train_steps(control, range(3, 6))
    assert not all_equal(values(state), values(control))


def test_restore_rejects_weights_of_another_shape(tmp_path: Path) -> None:
    new_state().snapshot(0).write(tmp_path)
    restored = new_state(hidden=16)
    with pytest.raises(CheckpointError, match="is missing or has the wrong shape"):
        restored.restore(tmp_path)
    with pytest.raises(CheckpointError, match="missing"):
        restored.restore(tmp_path / "none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_checkpoint_contains_untrained_embedding_rows(dtype: torch.dtype, tmp_path: Path) -> None:
    def partly_trained(seed: int) -> State:
        model = tiny_model(20, "nsp", seed=seed, hidden=8)
        masters = Masters(model, dtype, {TOKENS: torch.tensor([2, 5])})
        return State(masters, adamw(masters.weights, learning_rate=0.01, weight_decay=0.1), BERT)

    state = partly_trained(0)
    train_steps(state, range(2))
    state.snapshot(2).write(tmp_path)
    table = "bert.embeddings.word_embeddings.weight"
    assert load_file(tmp_path / "model.safetensors")[table].shape == (20, 8)
    restored = partly_trained(1)
    assert restored.restore(tmp_path) == 2
    for item in (state, restored):
        train_steps(item, range(2, 4))
    assert all_equal(
        *(list(item.masters.whole().state_dict().values()) for item in (state, restored))
    )
    assert all_equal(
        *(list(item.masters.model.state_dict().values()) for item in (state, restored))
    )


def test_find_damage_reports_the_damaged_file(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000003"
    folder.mkdir()
    new_state().snapshot(3).write(folder)
    assert find_damage(folder) is None
    assert find_damage(folder.rename(tmp_path / "step-00000004")) == "manifest.json is damaged"
    folder = (tmp_path / "step-00000004").rename(folder)
    (folder / "optimizer.safetensors").write_bytes(b"half")
    assert str(find_damage(folder)).startswith("optimizer.safetensors is damaged")
    (folder / "manifest.json").unlink()
    assert str(find_damage(folder)).startswith("incomplete")


@pytest.mark.parametrize(
    ("files", "complete"),
    [
        (["model.safetensors", "optimizer.safetensors"], True),
        (["model.safetensors", *(f"optimizer-0000{n}-of-00002.safetensors" for n in (1, 2))], True),
        (["model.safetensors", "optimizer-00001-of-00002.safetensors"], False),
        (["optimizer.safetensors"], False),
        (["model.safetensors"], False),
        (["model.safetensors", "optimizer.safetensors", "../other"], False),
        ([], False),
    ],
    ids=str,
)
def test_manifest_must_list_every_part(files: list[str], complete: bool, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000003"
    folder.mkdir()
    for name in files:
        (folder / name).write_bytes(b"part")
    hashes = {name: sha256(folder / name) for name in files}
    write_json(folder / "manifest.json", {"step": 3, "sha256": hashes})
    assert find_damage(folder) == (None if complete else "manifest.json is damaged")
