"""What a model said before it learned, for tasks that learn from the difference."""

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
from bertkit.tasks.task import Feature, Task
from bertkit.training.run import Run

FILE = "start.safetensors"


def with_start(
    run: Run,
    task: Task[Any, Any],
    train: Sequence[Feature],
    dev: Sequence[Feature],
    *,
    start: int,
    max_batch_tokens: int,
) -> tuple[list[Feature], list[Feature]]:
    """The features with the outputs of the model that the run begins with.

    They are computed once, before the first step, and kept beside the checkpoints: no second model
    is in memory. Those of train are in the numbers that the model learns in, so that the first
    difference is none; those of dev in fp32, as epochs are scored.
    Raises: CheckpointError where those of a run that goes on are lost.
    """
    path = run.out / CHECKPOINTS / FILE
    if start == 0:
        say(f"{task.name}: what the model says of all examples before it learns")
        masters = run.state.masters
        path.parent.mkdir(exist_ok=True)
        engine = Engine(masters.model.eval(), precision=None, max_batch_tokens=max_batch_tokens)
        kept = {"train": _outputs(task, engine, train)}
        engine = Engine(masters.whole(), max_batch_tokens=max_batch_tokens)
        kept["dev"] = _outputs(task, engine, dev)
        with writing(path) as partial:
            write_tensors(partial, kept)
    else:
        kept = _read(path)
    return _dealt(path, train, kept.get("train")), _dealt(path, dev, kept.get("dev"))


def _outputs(task: Task[Any, Any], engine: Engine, features: Sequence[Feature]) -> Tensor:
    return torch.from_numpy(np.concatenate(task.run(engine, features)))


def _read(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise CheckpointError(
            f"{path}: missing, and without it the run cannot go on; start over in another --out"
        )
    return read_file(path, "start over in another --out")[0]


def _dealt(path: Path, features: Sequence[Feature], outputs: Tensor | None) -> list[Feature]:
    """To each feature the rows that are its own."""
    counts = [1 if f.token_indices is None else len(f.token_indices) for f in features]
    if outputs is None or len(outputs) != sum(counts):
        raise CheckpointError(f"{path}: damaged; start over in another --out")
    parts = outputs.numpy()
    cuts = np.cumsum(counts)[:-1]
    rows = zip(features, np.split(parts, cuts), strict=True)
    return [replace(feature, teacher_outputs=own) for feature, own in rows]
