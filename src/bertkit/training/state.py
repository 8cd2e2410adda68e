"""What a run has learned so far, written so that it can go on bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bertkit.checkpoint.weights import FILE, write_tensors
from bertkit.errors import CheckpointError
from bertkit.storage import read_json, sha256, write_json
from bertkit.training.masters import Masters

OPTIMIZER, MANIFEST = "optimizer.safetensors", "manifest.json"

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
    """Those that learn, by our names."""
    optimizer: dict[str, Tensor]
    frozen: str | None
    named: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    """Gives weights the names that they have in files."""

    def write(self, folder: Path) -> None:
        """Write it, and a manifest with the hash of every file."""
        write_tensors(folder / FILE, self.named(self.weights))
        write_tensors(folder / OPTIMIZER, self.optimizer)
        hashes = {name: sha256(folder / name) for name in (FILE, OPTIMIZER)}
        frozen = {} if self.frozen is None else {"frozen": self.frozen}
        write_json(folder / MANIFEST, {"step": self.step, "sha256": hashes, **frozen})


@dataclass(frozen=True)
class State:
    """The weights that learn and their optimizer; `names` are those of weights in files.

    Frozen weights are those of the model that the run began with: a hash of them is kept alone.
    """

    masters: Masters
    optimizer: torch.optim.Optimizer
    names: Names

    @cached_property
    def learned(self) -> dict[str, Tensor]:
        """The weights that the optimizer moves, some perhaps in later epochs alone."""
        moved = {id(w) for group in self.optimizer.param_groups for w in group["params"]}
        return {name: w for name, w in self.masters.weights.items() if id(w) in moved}

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
        for name, w in self.learned.items():
            kept = self.optimizer.state[w]
            for moment in MOMENTS:
                if moment in kept:
                    optimizer[f"{moment}.{name}"] = _copy(kept[moment])
            if MOMENTS[0] in kept and float(kept["step"]) != step:  # it began to learn later
                optimizer[f"step.{name}"] = _copy(kept["step"])
        weights = {name: _copy(w) for name, w in self.learned.items()}
        config = self.masters.model.config
        return Snapshot(
            step, weights, optimizer, self.frozen, partial(self.names.write, config=config)
        )

    def restore(self, folder: Path) -> int:
        """Put a checkpoint back and return its step.

        Raises: CheckpointError when it cannot be read or does not fit.
        """
        masters = self.masters
        try:
            file = load_file(folder / FILE)
            weights = self.names.read(masters.weights, file, masters.model.config)
            optimizer = load_file(folder / OPTIMIZER)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder}: cannot be read ({error})") from None
        self._check_frozen(folder)
        step = optimizer["step"]
        with torch.no_grad():
            for name, w in self.learned.items():
                if name not in weights or weights[name].shape != w.shape:
                    raise CheckpointError(f"{folder / FILE}: {name} is missing or of another shape")
                w.copy_(weights[name])
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


def damage(folder: Path) -> str | None:
    """Why a checkpoint cannot be used; None for one that is complete."""
    try:
        manifest = read_json(folder / MANIFEST, CheckpointError, "remove the folder")
        hashes = {name: sha256(folder / name) for name in (FILE, OPTIMIZER)}
    except (OSError, CheckpointError) as error:
        return f"incomplete ({error})"
    match manifest:
        case {"step": int(step), "sha256": {**written}} if folder.name == f"step-{step:08d}":
            for name, actual in hashes.items():
                if written.get(name) != actual:
                    return f"{name} is damaged (its hash differs from the manifest's)"
            return None
    return f"{MANIFEST} is damaged"
