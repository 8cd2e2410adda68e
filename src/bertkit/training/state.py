"""Checkpoints of a run: all that is needed to go on, bit for bit, and nothing half-written.

A checkpoint is a folder `checkpoints/step-00000200` whose manifest names every file with its hash.
It is written under another name, synced and renamed, so a kill leaves either all of it or nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from bertkit.checkpoint.weights import FILE, write_tensors
from bertkit.errors import CheckpointError
from bertkit.families import Family
from bertkit.storage import (
    link_or_copy,
    new_folder,
    read_json,
    sha256,
    sweep,
    write_json,
    writing,
)
from bertkit.training.masters import Masters

FOLDER, OPTIMIZER, MANIFEST = "checkpoints", "optimizer.safetensors", "manifest.json"
SETTINGS = (".json", ".txt")
"""How names of a model folder's files end, beside weights."""

MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""What an optimizer keeps of each weight: AdamW the first two, Muon the third."""


def save_checkpoint(
    run: Path,
    step: int,
    masters: Masters,
    optimizer: torch.optim.Optimizer,
    family: Family,
    *,
    keep: int,
) -> Path:
    """Write the state after `step` and drop all but the `keep` newest.

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
            write_tensors(partial / FILE, family.write(weights, masters.model.config))
            write_tensors(partial / OPTIMIZER, state)
            files = {name: sha256(partial / name) for name in (FILE, OPTIMIZER)}
            write_json(partial / MANIFEST, {"step": step, "sha256": files})
    for old in _folders(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def publish(folder: Path, run: Path) -> None:
    """Make a checkpoint's weights those of the run's model folder."""
    with writing(run / FILE) as partial:
        link_or_copy(folder / FILE, partial)


@contextmanager
def rewritten(run: Path) -> Iterator[list[str]]:
    """A sentence, when the block ends, for each settings file of a folder in whose place it wrote
    something else: what stood there was damaged. Weights may only have been older."""

    def held() -> dict[Path, str]:
        return {p: sha256(p) for p in run.iterdir() if p.is_file() and p.suffix in SETTINGS}

    before, sentences = held(), list[str]()
    yield sentences
    after = held()
    sentences += (
        f"{path}: damaged, and written anew"
        for path in sorted(before)
        if before[path] != after[path]
    )


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint; None before the first."""
    return next((f for f in reversed(_folders(run)) if _damage(f) is None), None)


def recover(run: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, and a sentence for each one that is damaged.

    Damaged ones are renamed `damaged-step-...`, so that rotation never counts them in place of a
    good one; what killed processes left half-written is removed.
    Raises: CheckpointError when there are checkpoints and none is complete.
    """
    sweep(run)
    sweep(run / FOLDER)
    damage = []
    good = None
    for folder in reversed(_folders(run)):
        reason = _damage(folder)
        if reason is not None:
            damage.append((folder, reason))
        elif good is None:
            good = folder
    if damage and good is None:
        folder, reason = damage[0]
        raise CheckpointError(
            f"{folder}: {reason}, and no older checkpoint is complete; remove {run / FOLDER} to "
            "begin again from step 0"
        )
    sentences = []
    for folder, reason in damage:
        aside = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        newer = good is not None and folder.name > good.name
        used = "the one before it is used" if newer else "a newer one is used"
        sentences.append(f"{folder}: {reason}; {used}, this one is now {aside}")
    return good, sentences


def restore(
    folder: Path, masters: Masters, optimizer: torch.optim.Optimizer, family: Family
) -> int:
    """Put a checkpoint back and return its step. Raises: CheckpointError when it does not fit."""
    try:
        weights = family.read(masters.weights, load_file(folder / FILE), masters.model.config)
        state = load_file(folder / OPTIMIZER)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({error})") from None
    step = int(state["step"])
    with torch.no_grad():
        for name, w in masters.weights.items():
            if name not in weights or weights[name].shape != w.shape:
                raise CheckpointError(f"{folder / FILE}: {name} is missing or of another shape")
            w.copy_(weights[name])
            moments = {
                m: state[f"{m}.{name}"].to(w.device) for m in MOMENTS if f"{m}.{name}" in state
            }
            if moments:  # else it is frozen, or no step was taken
                # the fused optimizer wants its count where the weights are
                optimizer.state[w] = {"step": torch.tensor(float(step), device=w.device), **moments}
    masters.update_model()
    return step


def _folders(run: Path) -> list[Path]:
    return sorted((run / FOLDER).glob("step-*"))


def _damage(folder: Path) -> str | None:
    try:
        manifest = read_json(folder / MANIFEST, CheckpointError, "remove the folder")
        found = {name: sha256(folder / name) for name in (FILE, OPTIMIZER)}
    except (OSError, CheckpointError) as error:
        return f"incomplete ({error})"
    for name, hashed in found.items():
        match manifest:
            case {"step": int(step), "sha256": {**held}} if folder.name == f"step-{step:08d}":
                if held.get(name) != hashed:
                    return f"{name} is damaged (its hash differs from the manifest's)"
            case _:
                return f"{MANIFEST} is damaged"
    return None
