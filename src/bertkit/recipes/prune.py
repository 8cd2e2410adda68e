"""Pruning of a fine-tuned model: the least important attention heads, or layers, are removed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.batch import by_length
from bertkit.checkpoint.directory import resave
from bertkit.config import Count
from bertkit.errors import ConfigError
from bertkit.models.model import Model
from bertkit.models.surgery import (
    Head,
    attention_layers,
    count_prunable_heads,
    keep_layers,
    pruned_heads,
    read_head,
    without_heads,
)
from bertkit.objectives.loss import totals
from bertkit.pipelines import TaskPipeline, answering, load_on
from bertkit.recipes.evaluate import evaluate
from bertkit.storage import check_unused
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Reading, Task, group, make_batch, policy_of_files

MAX_BATCH_TOKENS = 4096
"""Maximum number of tokens per batch when the importance of heads is computed."""


def prune(
    model: str | Path,
    /,
    *,
    dev: Path | str | Sequence[Any],
    out: Path,
    data: Path | str | Sequence[Any] | None = None,
    count: Count | None = None,
    heads: Sequence[Head | str] = (),
    layers: Sequence[int] = (),
    task: str | type[Task[Any, Any]] | None = None,
    device: str = "auto",
    reading: Reading | None = None,
) -> dict[str, Any]:
    """Prune attention heads or layers of a fine-tuned model.

    The weights of a pruned head are set to zero, so the shape of the model does not change.
    Fine-tuning does not update pruned heads, and inference skips them.

    Args:
        model: Model directory or hub id.
        dev: Labeled examples on which the model is scored before and after pruning.
        out: Output directory. Must not exist.
        data: Labeled examples from which the importance of heads is computed. Required with
            --count. Must differ from --dev.
        count: Number of heads to prune, the least important first.
        heads: Head to prune, as LAYER.HEAD, counted from 1; repeat the option for several heads.
        layers: Layer to keep, counted from 1; repeat the option for several layers. All other
            layers are removed.
        task: Task of the model as module:Class, if the task is not part of bertkit.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        reading: Columns and format of the examples.

    Returns:
        The scores before and after pruning, and the pruned heads or the remaining layers. If
        `count` is set, also the importance of each head.

    Raises:
        ConfigError: If a head or layer does not exist, a layer would lose all its heads, or `data`
            and `dev` are the same.
    """
    pruned = [read_head(head) if isinstance(head, str) else head for head in heads]
    check_unused(out)
    if sum((count is not None, bool(pruned), bool(layers))) != 1:
        raise ConfigError("expected exactly one of count, heads and layers")
    if (count is None) != (data is None):
        raise ConfigError("--count and --data require each other; set both or neither")
    if data is not None and _same(data, dev):
        raise ConfigError(
            "--data: must differ from --dev, on which the pruned model is scored; use examples of "
            "the training data"
        )
    pipeline = answering(load_on(model, device), task)
    network = pipeline.loaded.model
    if layers:
        smaller = keep_layers(network, layers)
    elif pruned:
        smaller = without_heads(network, pruned)
    elif not 0 < (count or 0) <= count_prunable_heads(network):
        most = count_prunable_heads(network)
        raise ConfigError(
            f"--count: must be from 1 to {most}, got {count}; each layer keeps at least one head"
        )
    rows = _read(pipeline, dev, reading)
    examples = [] if data is None else _read(pipeline, data, reading)
    record: dict[str, Any] = {"before": evaluate(pipeline, rows)}
    if count is not None:
        pipeline.task.check(examples)
        scores = compute_importance(network, pipeline.task, _features(pipeline, examples))
        pruned = select_heads(scores, count, pruned_heads(network))
        smaller = without_heads(network, pruned)
        record["importance"] = np.round(scores, 4).tolist()
    record |= {"layers": list(layers)} if layers else {"heads": [list(head) for head in pruned]}
    loaded = replace(pipeline.loaded, model=smaller)
    record["after"] = evaluate(TaskPipeline(pipeline.task, loaded), rows)
    resave(loaded, smaller, out)
    return record


def compute_importance(
    model: Model, task: Task[Any, Any], features: Sequence[Any]
) -> NDArray[np.float64]:
    """Estimate how much the loss changes if a head is removed, as the mean of |output · gradient|.

    Args:
        model: The model.
        task: The task.
        features: Features with targets.

    Returns:
        The importance of each head. The values of each layer are normalized to an L2 norm of 1.

    Shapes:
        returns: (layers, H).

    Source: Michel et al. 2019, equation 2 and section 4.1.
    """
    model = copy.deepcopy(model).eval()
    device = next(model.parameters()).device
    parts, config = attention_layers(model), model.config
    changes = torch.zeros(len(parts), config.heads, dtype=torch.double)
    outputs: list[Tensor] = []

    def store(_: nn.Module, inputs: tuple[Tensor]) -> None:
        inputs[0].retain_grad()
        outputs.append(inputs[0])

    for part in parts:
        part.out.register_forward_pre_hook(store)
    units = group(features)
    lengths = [sum(len(f.encoding) for f in unit) for unit in units]
    for indices in by_length(lengths, MAX_BATCH_TOKENS):
        batch = make_batch(task, [f for index in indices for f in units[index]]).to(device)
        outputs.clear()
        task.loss(model, batch, totals([batch])).total.backward()
        for layer, x in enumerate(outputs):
            assert x.grad is not None
            change = (x * x.grad).detach().unflatten(1, (config.heads, -1)).sum(-1)
            sums = change.new_zeros(len(batch.layout.lengths), config.heads)
            sums.index_add_(0, batch.layout.sequence_ids, change[: batch.layout.total])
            # Layers that share weights have the same index.
            changes[config.depths[layer]] += sums.abs().sum(0).cpu() * totals([batch])[task.head]
    scores: NDArray[np.float64] = (
        changes / changes.norm(dim=1, keepdim=True).clamp(min=1e-30)
    ).numpy()
    return scores


def select_heads(
    scores: NDArray[np.float64], count: int, pruned_heads: Sequence[Head] = ()
) -> list[Head]:
    """Select the least important heads. Each layer keeps at least one head.

    Args:
        scores: Importance of each head, of shape (layers, H).
        count: Number of heads to select.
        pruned_heads: Heads that are already pruned.

    Returns:
        The heads as (layer, head), counted from 1, in ascending order.
    """
    pruned = list(pruned_heads)
    for index in np.argsort(scores, axis=None, kind="stable"):
        layer, head = (int(n) + 1 for n in np.unravel_index(index, scores.shape))
        is_last = sum(number == layer for number, _ in pruned) == scores.shape[1] - 1
        if (
            len(pruned) < count + len(pruned_heads)
            and not is_last
            and (layer, head) not in pruned_heads
        ):
            pruned.append((layer, head))
    return sorted(set(pruned) - set(pruned_heads))


def _same(data: Path | str | Sequence[Any], dev: Path | str | Sequence[Any]) -> bool:
    if isinstance(data, str | Path) and isinstance(dev, str | Path):
        return Path(data).resolve() == Path(dev).resolve()
    return data is dev


def _read(
    pipeline: TaskPipeline[Any], rows: Path | str | Sequence[Any], reading: Reading | None
) -> Sequence[Any]:
    if isinstance(rows, str | Path):
        return read_examples(type(pipeline.task), rows, reading, learned=pipeline.columns)
    return rows


def _features(pipeline: TaskPipeline[Any], examples: Sequence[Any]) -> list[Any]:
    task, loaded = pipeline.task, pipeline.loaded
    long = policy_of_files(task)
    return task.features(examples, loaded.tokenizer, loaded.length, long=long, labeled=True)
