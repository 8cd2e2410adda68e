"""What a run has learned so far, written so that it can go on bit for bit."""

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
from bertkit.training.distributed import ALONE, Ranks
from bertkit.training.master_weights import Masters
from bertkit.training.optimizer import Optimizer, Sharded
from bertkit.training.weight_average import TailAverage

OPTIMIZER, MANIFEST = "optimizer.safetensors", "manifest.json"

SHARD = re.compile(r"optimizer-(\d{5})-of-(\d{5})\.safetensors")
"""The name of a share of an optimizer's state, counted from 1."""

MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""What an optimizer keeps of each weight: AdamW the first two, Muon the third."""


class Names(Protocol):
    """How weights are named in files: those of a family, or our own."""

    def write(self, ours: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]: ...

    def read(
        self, ours: Iterable[str], theirs: Mapping[str, Tensor], config: Any
    ) -> dict[str, Tensor]: ...


class OurNames:
    """Weights are named as the model has them."""

    def write(self, ours: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
        return dict(ours)

    def read(
        self, ours: Iterable[str], theirs: Mapping[str, Tensor], config: Any
    ) -> dict[str, Tensor]:
        return {name: theirs[name] for name in ours if name in theirs}


@dataclass(frozen=True)
class Snapshot:
    """A state as it was after a step, on the CPU."""

    step: int
    weights: dict[str, Tensor]
    """Those that learn, by our names; the first process has them."""
    optimizer: dict[str, Tensor]
    """What the optimizer of this process keeps."""
    frozen: str | None
    named: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """Gives weights the names that they have in files."""
    ranks: Ranks = ALONE
    """Those that share the optimizer's state, each of which writes its part."""

    def write(self, folder: Path) -> None:
        """Write it, and a manifest with the hash of every file.

        Where the optimizer is sharded, all processes call this with the same folder; when it
        returns, they have written.
        Raises: StorageError, in all of them where one could not write.
        """
        word = b""
        try:
            if self.ranks.first:
                write_tensors(folder / FILE, self.named(self.weights))
            own = _file_of(self.ranks.rank, self.ranks.world)
            write_tensors(folder / own, self.optimizer)
            word = sha256(folder / own).encode()
        finally:
            told = self.ranks.tell(word)
        for rank, hash_of_part in enumerate(told):
            if not hash_of_part:
                raise StorageError(
                    f"{folder.parent}: rank {rank} could not write its part of step {self.step}, "
                    "and says why"
                )
        if self.ranks.first:
            hashes = {FILE: sha256(folder / FILE)}
            for rank, hash_of_part in enumerate(told):
                hashes[_file_of(rank, self.ranks.world)] = hash_of_part.decode()
            frozen = {} if self.frozen is None else {"frozen": self.frozen}
            write_json(folder / MANIFEST, {"step": self.step, "sha256": hashes, **frozen})


@dataclass(frozen=True)
class State:
    """The weights that learn and their optimizer; `names` are those of weights in files.

    Frozen weights are those of the model that the run began with: a hash of them is kept alone.
    """

    masters: Masters
    optimizer: Optimizer
    names: Names
    average: TailAverage | None = None

    @cached_property
    def learned(self) -> dict[str, Tensor]:
        """The weights that the optimizer moves, some perhaps in later epochs alone."""
        moved = {id(w) for group in self.optimizer.param_groups for w in group["params"]}
        return {name: w for name, w in self.masters.weights.items() if id(w) in moved}

    @property
    def ranks(self) -> Ranks:
        """Those that share the optimizer's state."""
        return self.optimizer.ranks if isinstance(self.optimizer, Sharded) else ALONE

    @cached_property
    def _kept(self) -> dict[str, Tensor]:
        """The weights that learn whose optimizer's state this process keeps."""
        if not isinstance(self.optimizer, Sharded):
            return self.learned
        return {name: w for name, w in self.learned.items() if self.optimizer.owns(name)}

    @cached_property
    def frozen(self) -> str | None:
        """A hash of the weights that do not learn; None where all do."""
        digest = hashlib.sha256()
        still = [(n, w) for n, w in self.masters.weights.items() if n not in self.learned]
        for name, weight in still:
            digest.update(name.encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest() if still else None

    def snapshot(self, step: int) -> Snapshot:
        """A copy of the state after `step`, which may be written while training goes on."""
        optimizer = {"step": torch.tensor(float(step))}
        for name, w in self._kept.items():
            kept = self.optimizer.state[w]
            for moment in MOMENTS:
                if moment in kept:
                    optimizer[f"{moment}.{name}"] = _copy(kept[moment])
            if MOMENTS[0] in kept and float(kept["step"]) != step:  # it began to learn later
                optimizer[f"step.{name}"] = _copy(kept["step"])
            if self.average is not None and name in self.average.means:
                optimizer[f"average.{name}"] = _copy(self.average.means[name])
        ranks, named = self.ranks, partial(self.names.write, config=self.masters.model.config)
        weights = {n: _copy(self.masters.get(n)) for n in self.learned if ranks.first}
        return Snapshot(step, weights, optimizer, self.frozen, named, ranks)

    def restore(self, folder: Path) -> int:
        """Put a checkpoint back and return its step.

        Raises: CheckpointError when it cannot be read or does not fit.
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
                    raise CheckpointError(f"{folder / FILE}: {name} is missing or of another shape")
                masters.put(name, weights[name])
                if name not in self._kept:
                    continue
                moments = {
                    moment: optimizer[f"{moment}.{name}"].to(w.device)
                    for moment in MOMENTS
                    if f"{moment}.{name}" in optimizer
                }
                if moments:  # else no step was taken
                    # the fused optimizer wants its count where the weights are
                    own = float(optimizer.get(f"step.{name}", step))
                    count = torch.tensor(own, device=w.device)
                    self.optimizer.state[w] = {"step": count, **moments}
        masters.update_model()
        return int(step)

    def _read_optimizer(self, folder: Path) -> dict[str, Tensor]:
        """What this process is to keep, from as many files as have written it."""
        wanted = {f"{kept}.{name}" for name in self._kept for kept in (*MOMENTS, "step")}
        if self.average is not None:  # all of it: each process has the mean of all weights
            wanted |= {f"average.{name}" for name in self.learned}
        optimizer = {}
        for path in sorted(folder.glob("optimizer*.safetensors")) or [folder / OPTIMIZER]:
            check_file(path, CheckpointError, most=memory.installed())
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    if name in wanted or name == "step":
                        optimizer[name] = file.get_tensor(name)
        return optimizer

    def _check_frozen(self, folder: Path) -> None:
        """Raises: CheckpointError when other weights are frozen than when the run began."""
        manifest = folder / MANIFEST
        kept = (
            read_json(manifest, CheckpointError, "remove the folder") if manifest.exists() else {}
        )
        if isinstance(kept, dict) and kept.get("frozen", self.frozen) != self.frozen:
            raise CheckpointError(
                f"{folder}: the model that the run began with has other weights now, which do not "
                "learn and are not in the checkpoint; give it back, or start another run"
            )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _file_of(rank: int, world: int) -> str:
    """The name of the optimizer's state that a process writes."""
    return OPTIMIZER if world == 1 else f"optimizer-{rank + 1:05d}-of-{world:05d}.safetensors"


def damage(folder: Path) -> str | None:
    """Why a checkpoint cannot be used; None for one that is complete."""
    try:
        manifest = read_json(folder / MANIFEST, CheckpointError, "remove the folder")
        match manifest:
            case {"step": int(step), "sha256": {**hashes}} if folder.name == f"step-{step:08d}":
                written = {str(name): expected for name, expected in hashes.items()}
                if not _complete(written):
                    return f"{MANIFEST} is damaged"
                for name, expected in written.items():
                    check_file(folder / name, CheckpointError, most=memory.installed())
                    if sha256(folder / name) != expected:
                        return f"{name} is damaged (its hash differs from the manifest's)"
                return None
    except (OSError, CheckpointError) as error:
        return f"incomplete ({error})"
    return f"{MANIFEST} is damaged"


def _complete(files: Collection[str]) -> bool:
    """Whether these are the names of weights and of every part of an optimizer's state."""
    parts = set(files) - {FILE}
    worlds = {int(match[2]) for part in parts if (match := SHARD.fullmatch(part))} or {1}
    return FILE in files and parts == {_file_of(rank, max(worlds)) for rank in range(max(worlds))}
