"""Outputs of the initial model, for tasks whose loss compares the trained model with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit.checkpoint.run_directory import CHECKPOINTS
from bertkit.checkpoint.weights import read_file, write_tensors
from bertkit.console import say
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError
from bertkit.storage import writing
from bertkit.tasks.task import Feature, Task, run_head
from bertkit.training.run import Run

FILE = "start.safetensors"


def add_reference(
    run: Run,
    task: Task[Any, Any],
    train: Sequence[Feature],
    dev: Sequence[Feature],
    *,
    start: int,
    max_batch_tokens: int,
) -> tuple[list[Feature], list[Feature]]:
    """Add the outputs of a run's initial model to the features.

    The outputs are computed once, before the first step, and stored next to the checkpoints, so
    that a second model need not stay in memory. For training, they are computed in the training
    precision, so that they equal the model's outputs at the first step. For evaluation, they are
    computed in fp32, as in the evaluation after each epoch.

    Raises:
        CheckpointError: If the run is resumed, and the stored outputs are missing or damaged.
    """
    path = run.out / CHECKPOINTS / FILE
    if start == 0:
        say(f"{task.name}: computing the outputs of the initial model")
        masters = run.state.masters
        path.parent.mkdir(parents=True, exist_ok=True)
        engine = Engine(masters.model.eval(), precision=None, max_batch_tokens=max_batch_tokens)
        outputs = {"train": _outputs(task, engine, train)}
        engine = Engine(masters.whole(), max_batch_tokens=max_batch_tokens)
        outputs["dev"] = _outputs(task, engine, dev)
        with writing(path) as partial:
            write_tensors(partial, outputs)
    else:
        outputs = _read(path)
    return _assign(path, train, outputs.get("train")), _assign(path, dev, outputs.get("dev"))


def _outputs(task: Task[Any, Any], engine: Engine, features: Sequence[Feature]) -> Tensor:
    """Compute the outputs for all features, and concatenate them."""
    return torch.from_numpy(np.concatenate(run_head(task, engine, features)))


def _read(path: Path) -> dict[str, Tensor]:
    """Read the stored outputs of a resumed run."""
    if not path.exists():
        raise CheckpointError(
            f"{path}: missing, so the run cannot be resumed; start a new run with another --out"
        )
    return read_file(path, "start a new run with another --out")[0]


def _assign(path: Path, features: Sequence[Feature], outputs: Tensor | None) -> list[Feature]:
    """Add its rows of the outputs to each feature."""
    counts = [1 if f.token_indices is None else len(f.token_indices) for f in features]
    if outputs is None or len(outputs) != sum(counts):
        raise CheckpointError(f"{path}: damaged; start a new run with another --out")
    parts = outputs.numpy()
    cuts = np.cumsum(counts)[:-1]
    rows = zip(features, np.split(parts, cuts), strict=True)
    return [replace(feature, teacher_outputs=part) for feature, part in rows]
