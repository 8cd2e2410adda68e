"""What each default of fine-tuning is worth, and `Trainer`'s beside them: scores, and no times.

The five tasks of bench-finetune with its rows, passes, steps and rates, for many seeds; one setting
is changed at a time. `Trainer` is as it comes (fp32, random order). Scores are those on dev after
the last pass, on both sides. On a GPU many runs go on at once, and both sides use it. Each is a
line of `defaults.jsonl` beside the results, and not run again. BERTKIT_DATA names the folder of the
data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest.mock import patch

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import kept
from benchmarks.finetune import WAYS, WORKS, Way, chosen, data_folder, numbers, ours, peers, read
from benchmarks.harness import Options, at_once
from bertkit.batch import Batch
from bertkit.checkpoint.tuned import processor
from bertkit.console import quietly
from bertkit.models.model import Model
from bertkit.objectives.loss import Loss, Totals
from bertkit.storage import write_text
from bertkit.tasks.task import Task
from bertkit.training.masters import Masters

OURS, PEER = "ours", "Trainer"
CHANGES: Mapping[str, Mapping[str, Any]] = {
    OURS: {},
    "no warm-up": {"warmup": 0.0},
    "twice the rate": {},
    "layers 0.9": {"layer_decay": 0.9},
    "no weight decay": {"weight_decay": 0.0},
    "fp32": {"precision": "fp32"},
    "mean of steps": {},
    "R-Drop": {},
    "twice the passes": {},
}
"""Settings of ours that are not the defaults. R-Drop takes as long as twice the passes."""
PEERS: Mapping[str, Way] = {
    PEER: WAYS["default"],
    f"{PEER}, warm-up": replace(WAYS["default"], arguments={"warmup_steps": 0.1}),
    f"{PEER}, twice the rate": WAYS["default"],
}
LONGER = {"twice the passes": 2}
"""How many times the task's passes."""
CLASSES = ("sst2", "mrpc")
"""Tasks that R-Drop is tried at."""
FASTER = {"twice the rate": 2.0, f"{PEER}, twice the rate": 2.0}
"""How many times the task's rate."""
NAMES = tuple(dict.fromkeys((OURS, PEER, *CHANGES, *PEERS)))


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log."""

    task: str
    name: str
    seed: int
    scores: dict[str, float]
    device: str
    versions: dict[str, str]

    @property
    def points(self) -> float:
        """Of 100, by the score that is compared."""
        return 100 * self.scores[WORKS[self.task].scores[0]]


def main(options: Options) -> None:
    data, log, quick = data_folder(), kept.log_of("defaults"), options.quick
    if options.fresh and log.exists() and not quick:
        write_text(log, "")
    lines = [] if quick else read_log(log)
    done = {(line.task, line.name, line.seed) for line in lines if line.device == device()}
    tasks = chosen(options.tasks, data)
    wanted = [
        (task, name, seed, data, quick)
        for name in NAMES
        for seed in numbers(options.seeds or ("0" if quick else "0,1,2,3,4"))
        for task in tasks
        if (task, name, seed) not in done and options.only.lower() in name.lower()
        if name != "R-Drop" or task in CLASSES
    ]
    for line in at_once(tried, wanted, options):
        lines.append(line)
        print(f"{line.points:6.2f}  {line.task}, {line.name}, seed {line.seed}", flush=True)
        if not quick:
            kept.append(log, msgspec.json.encode(line).decode() + "\n")
    for where in dict.fromkeys(line.device for line in lines):
        print(f"on {where}:", table([line for line in lines if line.device == where]), sep="\n")


def read_log(path: Path) -> list[Tried]:
    """What has run before."""
    return kept.lines(path, Tried)


def device() -> str:
    """Where both sides learn: a GPU's name, or the processor's."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else processor()


def tried(task: str, name: str, seed: int, data: Path, quick: bool) -> Tried:
    """One run of one side."""
    gpu = torch.cuda.is_available()
    if gpu:
        torch.set_num_threads(1)
    work, settings = WORKS[task], dict(CHANGES.get(name, {}))
    rate, passes = FASTER.get(name, 1.0), LONGER.get(name, 1)
    work = replace(work, learning_rate=rate * work.learning_rate, epochs=passes * work.epochs)
    given: dict[str, Any] = {"whole": True, "device": "cuda" if gpu else "cpu"}

    def examples() -> list[list[Any]]:
        return read(work, data, "quick" if quick else "whole")

    with quietly(), WITHIN.get(name, nullcontext)():
        if name in PEERS:
            found = peers(work, examples, work.epochs, seed, PEERS[name], **given)
        else:
            found = ours(work, examples, work.epochs, seed, **given, **settings)
    return Tried(
        task=task,
        name=name,
        seed=seed,
        scores=found.scores,
        device=device(),
        versions=kept.versions(),
    )


@contextmanager
def agreeing() -> Iterator[None]:
    """R-Drop: a batch goes through the model twice, with other dropout, and both answers are to
    agree. Source: Wu et al. 2021, equation 4, with α = 1."""

    def loss(task: Task[Any, Any], model: Model, batch: Batch, totals: Totals) -> Loss:
        both = [task.outputs(model, batch) for _ in range(2)]
        one, other = (task.loss_of(out, batch, totals, model.heads[task.head]) for out in both)
        p, q = (F.log_softmax(out, dim=-1) for out in both)
        apart: Tensor = ((p.exp() - q.exp()) * (p - q)).sum() / 2 / totals[task.head]
        return Loss((one.total + other.total) / 2 + apart, one.parts, one.correct)

    with patch.object(Task, "loss", loss):
        yield


@contextmanager
def averaging(share: float = 0.02) -> Iterator[None]:
    """What is scored has a moving mean of the weights of all steps, to which each adds a share."""
    update, means = Masters.update_model, dict[str, Tensor]()

    def update_model(masters: Masters) -> None:
        update(masters)
        for name, weight in masters.weights.items():
            if weight.requires_grad:
                means.setdefault(name, weight.detach().clone()).lerp_(weight.detach(), share)

    def whole(masters: Masters) -> Model:
        model = copy.deepcopy(masters.model).float()
        with patch.dict(masters.weights, means):
            averaged = {name: masters.get(name) for name in masters.weights}
        model.load_state_dict(averaged, strict=False)
        return model

    with patch.object(Masters, "update_model", update_model), patch.object(Masters, "whole", whole):
        yield


WITHIN: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "R-Drop": agreeing,
    "mean of steps": averaging,
}
"""What is changed besides settings."""


def table(lines: Sequence[Tried]) -> str:
    """Each side's points of each task, what it gains beside ours with the same seeds, and the mean
    of what the tasks gain."""
    points = {(line.task, line.name, line.seed): line.points for line in lines}
    told = []
    for name in NAMES:
        gains = []
        for task in WORKS:
            own = {s: p for (at, who, s), p in points.items() if (at, who) == (task, name)}
            gained = [
                p - points[task, OURS, s] for s, p in own.items() if (task, OURS, s) in points
            ]
            if own:
                told.append(f"{name}, {task}: {told_of([*own.values()])}")
            if gained and name != OURS:
                told[-1] += f"; beside ours {told_of(gained)}"
                gains.append(mean(gained))
        if len(gains) == len(WORKS):
            told.append(f"{name}, mean of the tasks: beside ours {mean(gains):+.2f}")
    return "\n".join(told)


def told_of(found: Sequence[float]) -> str:
    """The mean, its standard error, and of how many."""
    error = f" ± {stdev(found) / len(found) ** 0.5:.2f}" if len(found) > 1 else ""
    return f"{mean(found):.2f}{error} ({len(found)})"
