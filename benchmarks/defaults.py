"""What each default of fine-tuning is worth, and `Trainer`'s beside them: scores, and no times.

The five tasks of bench-finetune with its rows, passes, steps and rates, for many seeds; one setting
is changed at a time. `Trainer` is as it comes (fp32, random order). Scores are those on dev after
the last pass, on both sides. On a GPU many runs go on at once, and both sides use it. Each is a
line of `defaults.jsonl` beside the results, and not run again. BERTKIT_DATA names the folder of the
data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import msgspec
import torch

from benchmarks import kept
from benchmarks.finetune import WAYS, WORKS, chosen, data_folder, numbers, ours, peers, read
from benchmarks.harness import Options
from bertkit.checkpoint.tuned import processor
from bertkit.console import quietly
from bertkit.storage import write_text

OURS, PEER = "ours", "Trainer"
CHANGES: Mapping[str, Mapping[str, Any]] = {
    OURS: {},
    "no warm-up": {"warmup": 0.0},
    "twice the rate": {"learning_rate": 2.0},
    "layers 0.9": {"layer_decay": 0.9},
    "no weight decay": {"weight_decay": 0.0},
    "fp32": {"precision": "fp32"},
}
"""Settings of ours; a rate is a multiple of the task's."""
TWICE = f"{PEER}, twice the rate"
NAMES = (OURS, PEER, *[name for name in CHANGES if name != OURS], TWICE)
AT_ONCE = 14
"""Runs on a GPU, whose kernels are short beside what starts them."""


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
    done = {(line.task, line.name, line.seed) for line in lines}
    tasks = chosen(options.tasks, data)
    wanted = [
        (task, name, seed)
        for name in NAMES
        for seed in numbers(options.seeds or ("0" if quick else "0,1,2,3,4"))
        for task in tasks
        if (task, name, seed) not in done and options.only.lower() in name.lower()
    ]
    processes = min(AT_ONCE, os.cpu_count() or 1) if torch.cuda.is_available() else 1
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(tried, *run, data, quick) for run in wanted]
        for run in as_completed(runs):
            lines.append(line := run.result())
            print(f"{line.points:6.2f}  {line.task}, {line.name}, seed {line.seed}", flush=True)
            if not quick:
                kept.append(log, msgspec.json.encode(line).decode() + "\n")
    print(table(lines))


def read_log(path: Path) -> list[Tried]:
    """What has run before."""
    return kept.lines(path, Tried)


def tried(task: str, name: str, seed: int, data: Path, quick: bool) -> Tried:
    """One run of one side."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.set_num_threads(1)
    change = dict({TWICE: {"learning_rate": 2.0}}.get(name) or CHANGES.get(name, {}))
    work = WORKS[task]
    rate = work.learning_rate * change.pop("learning_rate", 1.0)
    work = replace(work, learning_rate=rate)
    given: dict[str, Any] = {"whole": True, "device": device}

    def examples() -> list[list[Any]]:
        return read(work, data, "quick" if quick else "whole")

    with quietly():
        if name in CHANGES:
            found = ours(work, examples, work.epochs, seed, **given, **change)
        else:
            found = peers(work, examples, work.epochs, seed, WAYS["default"], **given)
    return Tried(
        task=task,
        name=name,
        seed=seed,
        scores=found.scores,
        device=torch.cuda.get_device_name() if device == "cuda" else processor(),
        versions=kept.versions(),
    )


def table(lines: Sequence[Tried]) -> str:
    """Each side's points of each task, and what a change gains beside ours with the same seeds."""
    points = {(line.task, line.name, line.seed): line.points for line in lines}
    told = []
    for name in NAMES:
        gains = []
        for task in WORKS:
            found = {s: p for (at, who, s), p in points.items() if (at, who) == (task, name)}
            if not found:
                continue
            gained = [
                p - points[task, OURS, s] for s, p in found.items() if (task, OURS, s) in points
            ]
            gains += gained
            told.append(
                f"{name}, {task}: {spread(list(found.values()))}; beside ours {spread(gained)}"
            )
        if gains:
            told.append(f"{name}, all tasks: beside ours {spread(gains)}")
    return "\n".join(told)


def spread(found: Sequence[float]) -> str:
    """The mean, how far it may be off, and of how many."""
    error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else float("nan")
    return f"{mean(found):.2f} ± {error:.2f} ({len(found)})" if found else "not known"
