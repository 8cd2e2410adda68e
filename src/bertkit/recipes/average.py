"""Average the last checkpoints of a pretraining run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from bertkit.checkpoint.directory import load, resave
from bertkit.checkpoint.run_directory import CHECKPOINTS
from bertkit.checkpoint.weights import read_tensors, standard_names
from bertkit.config import Count
from bertkit.console import say
from bertkit.errors import CheckpointError
from bertkit.storage import check_unused
from bertkit.training.checkpoints import find_damage


def average(run: Path, /, *, out: Path, last: Count = 5) -> None:
    """Average the weights of the last checkpoints of a run.

    Args:
        run: Directory of a pretraining run. It contains the last `train.keep` checkpoints.
        out: Output directory of the averaged model. Must not exist.
        last: Number of checkpoints to average, counted from the newest.

    Raises:
        CheckpointError: If the run has fewer checkpoints than `last`, or one of them is damaged.

    Source:
        Vaswani et al. 2017, section 6.1.
    """
    check_unused(out)
    loaded = load(run)
    checkpoints = sorted((run / CHECKPOINTS).glob("step-*"))[-last:]
    if len(checkpoints) < last:
        raise CheckpointError(
            f"{run / CHECKPOINTS}: cannot average {last} of {len(checkpoints)} checkpoints; reduce "
            "--last, or pretrain with a larger train.keep or a smaller train.save_every"
        )
    sums: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        if (fault := find_damage(checkpoint)) is not None:
            raise CheckpointError(f"{checkpoint}: {fault}; delete the checkpoint, or reduce --last")
        for name, weight in read_tensors(checkpoint).items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + weight
    means = {name: weight / last for name, weight in sums.items()}
    model = loaded.model
    named = standard_names(loaded.family, means)
    weights = loaded.family.read(dict(model.state_dict()), named, model.config)
    model.load_state_dict({name: weight.float() for name, weight in weights.items()}, strict=False)
    resave(loaded, model, out)
    steps = ", ".join(f"{int(folder.name.removeprefix('step-')):,}" for folder in checkpoints)
    say(f"{out}: the mean of the weights after steps {steps}")
