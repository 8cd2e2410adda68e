"""Checkpoints: weights and optimizer state. A resumed run gets bit-identical results."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertkit import memory
from bertkit.checkpoint.weights import FILE, read_file, write_tensors
from bertkit.errors import CheckpointError, StorageError
from bertkit.storage import check_file, read_json, sha256, write_json
from bertkit.training.distributed import SINGLE_PROCESS, Ranks
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import Optimizer, Sharded
from bertkit.training.weight_average import TailAverage

OPTIMIZER, MANIFEST = "optimizer.safetensors", "manifest.json"

SHARD = re.compile(r"optimizer-(\d{5})-of-(\d{5})\.safetensors")
"""Matches the file name of a shard of the optimizer state. Shards are numbered from 1."""

MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""State that an optimizer keeps for each weight. AdamW keeps the first two, and Muon the third."""


class Names(Protocol):
    """Conversion between the names of weights in a model and in its files."""

    def write(self, weights: Mapping[str, Tensor], /, config: Any) -> dict[str, Tensor]:
        """Return the weights of a model under their names in files."""

    def read(
        self, names: Iterable[str], file: Mapping[str, Tensor], /, config: Any
    ) -> dict[str, Tensor]:
        """Return the weights of a file under their names in the model, which are `names`."""


@dataclass(frozen=True)
class Snapshot:
    """Copy of the training state after a step, on the CPU."""

    step: int
    weights: dict[str, Tensor]
    """Trained weights, by their names in the model. Only the first process has them."""
    optimizer: dict[str, Tensor]
    """Optimizer state of this process."""
    frozen: str | None
    """Hash of the frozen weights, or None if there are none."""
    to_file_names: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """Function that returns weights under their names in files."""
    ranks: Ranks = SINGLE_PROCESS
    """Processes over which the optimizer state is sharded. Each process writes its shard."""

    def write(self, folder: Path) -> None:
        """Write the checkpoint, and a manifest with the hash of each file.

        If the optimizer is sharded, all processes call this method with the same directory. It
        returns when all processes have written their shards.

        Args:
            folder: Checkpoint directory.

        Raises:
            StorageError: If a process could not write its files. All processes raise the error.
        """
        digest = b""
        try:
            if self.ranks.first:
                write_tensors(folder / FILE, self.to_file_names(self.weights))
            name = _optimizer_file(self.ranks.rank, self.ranks.world)
            write_tensors(folder / name, self.optimizer)
            digest = sha256(folder / name).encode()
        finally:
            digests = self.ranks.gather(digest)
        for rank, shard_digest in enumerate(digests):
            if not shard_digest:
                raise StorageError(
                    f"{folder.parent}: rank {rank} could not write its shard of step {self.step}; "
                    "see the output of that process"
                )
        if self.ranks.first:
            hashes = {FILE: sha256(folder / FILE)}
            for rank, shard_digest in enumerate(digests):
                hashes[_optimizer_file(rank, self.ranks.world)] = shard_digest.decode()
            frozen = {} if self.frozen is None else {"frozen": self.frozen}
            write_json(folder / MANIFEST, {"step": self.step, "sha256": hashes, **frozen})


@dataclass(frozen=True)
class State:
    """Training state: master weights, optimizer, and the running average of weights, if any.

    A checkpoint contains a hash of the frozen weights instead of the weights themselves, which a
    resumed run reads from the initial model.

    Args:
        masters: Master weights of the model.
        optimizer: Optimizer of the trained weights.
        names: Conversion of weight names for files.
        average: Average of the weights over the last steps of the run.
    """

    masters: Masters
    optimizer: Optimizer
    names: Names
    average: TailAverage | None = None

    @cached_property
    def learned(self) -> dict[str, Tensor]:
        """Weights that the optimizer updates. Some may be frozen during the first epochs."""
        ids = {id(w) for group in self.optimizer.param_groups for w in group["params"]}
        return {name: w for name, w in self.masters.weights.items() if id(w) in ids}

    @property
    def ranks(self) -> Ranks:
        """Processes over which the optimizer state is sharded."""
        return self.optimizer.ranks if isinstance(self.optimizer, Sharded) else SINGLE_PROCESS

    @cached_property
    def _owned(self) -> dict[str, Tensor]:
        """Trained weights whose optimizer state this process keeps."""
        if not isinstance(self.optimizer, Sharded):
            return self.learned
        return {name: w for name, w in self.learned.items() if self.optimizer.owns(name)}

    @cached_property
    def frozen(self) -> str | None:
        """Hash of the frozen weights, or None if all weights are trained."""
        digest = hashlib.sha256()
        frozen = [(n, w) for n, w in self.masters.weights.items() if n not in self.learned]
        for name, weight in frozen:
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest() if frozen else None

    def snapshot(self, step: int) -> Snapshot:
        """Copy the state after `step`, so that it can be written while training continues."""
        optimizer = {"step": torch.tensor(float(step))}
        for name, w in self._owned.items():
            state = self.optimizer.state[w]
            for moment in MOMENTS:
                if moment in state:
                    optimizer[f"{moment}.{name}"] = _copy(state[moment])
            # A weight that was frozen during the first epochs has been updated in fewer steps.
            if MOMENTS[0] in state and float(state["step"]) != step:
                optimizer[f"step.{name}"] = _copy(state["step"])
            if self.average is not None and name in self.average.means:
                optimizer[f"average.{name}"] = _copy(self.average.means[name])
        ranks, rename = self.ranks, partial(self.names.write, config=self.masters.model.config)
        weights = {n: _copy(self.masters.get(n)) for n in self.learned if ranks.first}
        return Snapshot(step, weights, optimizer, self.frozen, rename, ranks)

    def restore(self, folder: Path) -> int:
        """Load a checkpoint into the weights and the optimizer.

        Args:
            folder: Checkpoint directory.

        Returns:
            The step of the checkpoint.

        Raises:
            CheckpointError: If the checkpoint cannot be read or does not match the model.
        """
        masters = self.masters
        try:
            file = read_file(folder / FILE, "resume from another checkpoint")[0]
            weights = self.names.read(masters.weights, file, masters.model.config)
            optimizer = self._read_optimizer(folder)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder}: cannot be read ({error})") from None
        self._check_frozen(folder)
        step = optimizer["step"]
        if self.average is not None:
            means = {
                n: optimizer[f"average.{n}"] for n in self.learned if f"average.{n}" in optimizer
            }
            self.average.means = {n: mean.to(self.learned[n].device) for n, mean in means.items()}
        with torch.no_grad():
            for name, w in self.learned.items():
                if name not in weights or weights[name].shape != masters.working[name].shape:
                    raise CheckpointError(
                        f"{folder / FILE}: {name} is missing or has the wrong shape"
                    )
                masters.put(name, weights[name])
                if name not in self._owned:
                    continue
                moments = {
                    moment: optimizer[f"{moment}.{name}"].to(w.device)
                    for moment in MOMENTS
                    if f"{moment}.{name}" in optimizer
                }
                if moments:  # Before the first step, there are no moments.
                    steps = float(optimizer.get(f"step.{name}", step))
                    # The fused optimizer needs the step count on the device of the weights.
                    count = torch.tensor(steps, device=w.device)
                    self.optimizer.state[w] = {"step": count, **moments}
        masters.update_model()
        return int(step)

    def _read_optimizer(self, folder: Path) -> dict[str, Tensor]:
        """Read the optimizer state of this process from all shards of the checkpoint."""
        keys = {f"{key}.{name}" for name in self._owned for key in (*MOMENTS, "step")}
        if self.average is not None:  # Every process needs the average of all weights.
            keys |= {f"average.{name}" for name in self.learned}
        optimizer = {}
        for path in sorted(folder.glob("optimizer*.safetensors")) or [folder / OPTIMIZER]:
            check_file(path, CheckpointError, most=memory.installed())
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    if name in keys or name == "step":
                        optimizer[name] = file.get_tensor(name)
        return optimizer

    def _check_frozen(self, folder: Path) -> None:
        """Check that the frozen weights have not changed since the start of the run."""
        manifest = folder / MANIFEST
        record = (
            read_json(manifest, CheckpointError, "remove the folder") if manifest.exists() else {}
        )
        if isinstance(record, dict) and record.get("frozen", self.frozen) != self.frozen:
            raise CheckpointError(
                f"{folder}: the frozen weights, which the checkpoint does not contain, have "
                "changed since the run began; restore the initial model, or start another run"
            )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _optimizer_file(rank: int, world: int) -> str:
    """Return the name of the file to which a process writes its optimizer state."""
    return OPTIMIZER if world == 1 else f"optimizer-{rank + 1:05d}-of-{world:05d}.safetensors"


def find_damage(folder: Path) -> str | None:
    """Return the reason why a checkpoint cannot be used, or None if it is complete."""
    try:
        manifest = read_json(folder / MANIFEST, CheckpointError, "remove the folder")
        match manifest:
            case {"step": int(step), "sha256": {**hashes}} if folder.name == f"step-{step:08d}":
                files = {str(name): expected for name, expected in hashes.items()}
                if not _is_complete(files):
                    return f"{MANIFEST} is damaged"
                for name, expected in files.items():
                    check_file(folder / name, CheckpointError, most=memory.installed())
                    if sha256(folder / name) != expected:
                        return f"{name} is damaged (its hash differs from the manifest's)"
                return None
    except (OSError, CheckpointError) as error:
        return f"incomplete ({error})"
    return f"{MANIFEST} is damaged"


def _is_complete(files: Collection[str]) -> bool:
    """Return whether the files include the weights and all shards of the optimizer state."""
    shards = set(files) - {FILE}
    world = max([int(match[2]) for name in shards if (match := SHARD.fullmatch(name))], default=1)
    return FILE in files and shards == {_optimizer_file(rank, world) for rank in range(world)}
