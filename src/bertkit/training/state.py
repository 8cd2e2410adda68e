"""What a run has learned so far, written so that it can go on bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from bertkit.checkpoint.weights import FILE, write_tensors
from bertkit.errors import CheckpointError
from bertkit.families import Family
from bertkit.storage import read_json, sha256, write_json
from bertkit.training.masters import Masters

OPTIMIZER, MANIFEST = "optimizer.safetensors", "manifest.json"

MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""What an optimizer keeps of each weight: AdamW the first two, Muon the third."""


@dataclass(frozen=True)
class State:
    """The weights that learn and their optimizer; `family` names the weights in files."""

    masters: Masters
    optimizer: torch.optim.Optimizer
    family: Family

    def write(self, folder: Path, step: int) -> None:
        """Write the state after `step`, and a manifest with the hash of every file."""
        masters, moments = self.masters, self.optimizer.state
        weights = {name: w.detach().cpu() for name, w in masters.weights.items()}
        optimizer = {"step": torch.tensor(float(step))}
        for name, w in masters.weights.items():
            for moment in MOMENTS:
                if moment in moments[w]:
                    optimizer[f"{moment}.{name}"] = moments[w][moment].cpu()
        write_tensors(folder / FILE, self.family.write(weights, masters.model.config))
        write_tensors(folder / OPTIMIZER, optimizer)
        hashes = {name: sha256(folder / name) for name in (FILE, OPTIMIZER)}
        write_json(folder / MANIFEST, {"step": step, "sha256": hashes})

    def restore(self, folder: Path) -> int:
        """Put a checkpoint back and return its step.

        Raises: CheckpointError when it cannot be read or does not fit.
        """
        masters = self.masters
        try:
            file = load_file(folder / FILE)
            weights = self.family.read(masters.weights, file, masters.model.config)
            optimizer = load_file(folder / OPTIMIZER)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder}: cannot be read ({error})") from None
        step = optimizer["step"]
        with torch.no_grad():
            for name, w in masters.weights.items():
                if name not in weights or weights[name].shape != w.shape:
                    raise CheckpointError(f"{folder / FILE}: {name} is missing or of another shape")
                w.copy_(weights[name])
                moments = {
                    moment: optimizer[f"{moment}.{name}"].to(w.device)
                    for moment in MOMENTS
                    if f"{moment}.{name}" in optimizer
                }
                if moments:  # else it is frozen, or no step was taken
                    # the fused optimizer wants its count where the weights are
                    count = torch.tensor(float(step), device=w.device)
                    self.optimizer.state[w] = {"step": count, **moments}
        masters.update_model()
        return int(step)


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
