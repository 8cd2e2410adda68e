"""Checkpoints of a run: all that is needed to go on, bit for bit, and nothing half-written.

A checkpoint is a folder `checkpoints/step-00000200` whose manifest names every file with its hash.
It is written under another name, synced and renamed, so a kill leaves either all of it or nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertkit.checkpoint.weights import FILE
from bertkit.errors import CheckpointError
from bertkit.families import Family
from bertkit.storage import new_folder, sha256, write_json, writing
from bertkit.training.masters import Masters

FOLDER, OPTIMIZER, MANIFEST = "checkpoints", "optimizer.safetensors", "manifest.json"
MOMENTS = ("exp_avg", "exp_avg_sq")


def save_checkpoint(
    run: Path,
    step: int,
    masters: Masters,
    optimizer: torch.optim.Optimizer,
    family: Family,
    *,
    keep: int,
) -> Path:
    """Write the state after `step`, make its weights the run's, and drop all but `keep` newest.

    Older ones go only after the new one is complete. Raises: StorageError; nothing is lost.
    """
    folder = run / FOLDER / f"step-{step:08d}"
    if not folder.exists():
        weights = {name: w.detach().cpu() for name, w in masters.weights.items()}
        state = {"step": torch.tensor(float(step))}
        for name, w in masters.weights.items():
            for moment in MOMENTS:
                if moment in optimizer.state[w]:
                    state[f"{moment}.{name}"] = optimizer.state[w][moment].cpu()
        with new_folder(folder) as partial:
            save_file(family.write(weights), partial / FILE, {"format": "pt"})
            save_file(state, partial / OPTIMIZER)
            files = {name: sha256(partial / name) for name in (FILE, OPTIMIZER)}
            write_json(partial / MANIFEST, {"step": step, "sha256": files})
    with writing(run / FILE) as partial:
        os.link(folder / FILE, partial)  # the same bytes: no second copy on disk
    for old in _folders(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def newest_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, and a sentence for each newer one that is damaged."""
    damage: list[str] = []
    for folder in reversed(_folders(run)):
        reason = _damage(folder)
        if reason is None:
            return folder, damage
        damage.append(f"{folder}: {reason}; the one before it is used")
    return None, damage


def restore(
    folder: Path, masters: Masters, optimizer: torch.optim.Optimizer, family: Family
) -> int:
    """Put a checkpoint back and return its step. Raises: CheckpointError when it does not fit."""
    try:
        weights = family.read(masters.weights, load_file(folder / FILE))
        state = load_file(folder / OPTIMIZER)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({error})") from None
    step = int(state["step"])
    with torch.no_grad():
        for name, w in masters.weights.items():
            if name not in weights or weights[name].shape != w.shape:
                raise CheckpointError(f"{folder / FILE}: {name} is missing or of another shape")
            w.copy_(weights[name])
            if step:
                moments = {m: state[f"{m}.{name}"].to(w.device) for m in MOMENTS}
                optimizer.state[w] = {"step": torch.tensor(float(step)), **moments}
    masters.push()
    return step


def _folders(run: Path) -> list[Path]:
    return sorted((run / FOLDER).glob("step-*"))


def _damage(folder: Path) -> str | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, hashed in manifest["sha256"].items():
            if sha256(folder / name) != hashed:
                return f"{name} is damaged (its hash differs from the manifest's)"
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return f"incomplete ({error})"
    return None
