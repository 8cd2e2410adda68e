"""Labels from 8, 16 and 64 rows each: by pairs (`--contrastive`), by plain fine-tuning, and frozen.

All begin with MiniLM's sentence vectors. For each seed rows are drawn from train: so many of every
label to learn from, and as many others, where there are, to choose the epoch by; all ways have the
same. Plain fine-tuning has its defaults, and beside it what a sensible user of few rows gives it:
20 passes in steps of 8 rows. Frozen is a logistic regression on the vectors as they come.
Accuracies are those on dev, of SST-2 on a thousand rows of it, which chose nothing. Each is a line
of `few.jsonl` beside the results and not measured again. BERTKIT_DATA names the folder of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import torch

import bertkit
from benchmarks import gpt, kept
from benchmarks.embed import minilm
from benchmarks.finetune import data_folder, numbers
from benchmarks.harness import Options
from bertkit.console import quietly
from bertkit.data.order import Permutation
from bertkit.objectives.contrastive import fit_logistic
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune import finetune
from bertkit.storage import write_text
from bertkit.tasks.classify import Classify, Example
from bertkit.tasks.task import Reading

SIZES, SCORED = (8, 16, 64), 1000
"""Rows of each label to learn from, and rows that are scored at most."""

OURS, FROZEN = "contrastive", "frozen"
WAYS: Mapping[str, Mapping[str, Any]] = {
    OURS: {"contrastive": True},
    "plain": {"epochs": 20, "batch_size": 8},
    "plain, defaults": {},
    FROZEN: {},
}
"""The settings of each."""

TARGETS = {"plain": 1.0, "plain, defaults": 1.0, FROZEN: 1.0}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log: what one way came to with one draw of rows."""

    task: str
    rows: int
    seed: int
    way: str
    accuracy: float
    date: str
    machine: kept.Machine
    versions: dict[str, str]


def main(options: Options) -> None:
    data, log = data_folder(), kept.log_of("few")
    quick = options.quick
    lines = [] if quick or options.fresh else read_log(log)
    kept.refuse_others(log, [(line.machine, line.versions) for line in lines])
    if options.fresh and log.exists() and not quick:
        write_text(log, "")
    book = options.book("few", lambda what, peer: True)
    there = {(line.task, line.rows, line.seed, line.way) for line in lines}
    seeds = numbers(options.seeds or ("0" if quick else "0,1,2"))
    for seed in seeds:
        for task, read in (("TREC", trec), ("SST-2", sst2)):
            pool, scored = read(data)
            for rows in SIZES[:1] if quick else SIZES:
                learned, choosing = drawn(pool, rows, seed)
                for way, settings in WAYS.items():
                    if options.late or (task, rows, seed, way) in there:
                        continue
                    with TemporaryDirectory() as place, quietly():
                        found = accuracy(
                            way, settings, learned, choosing, scored, Path(place) / "out", seed
                        )
                    line = Line(
                        task=task, rows=rows, seed=seed, way=way, accuracy=found,
                        date=kept.now(), machine=kept.machine(), versions=kept.versions(),
                    )  # fmt: skip
                    lines.append(line)
                    if not quick:
                        kept.append(log, written(line))
                    book.add(*compared(lines))
    book.close()


def read_log(path: Path) -> list[Line]:
    """What was measured before."""
    return kept.lines(path, Line)


def written(line: Line) -> str:
    return msgspec.json.encode(line).decode() + "\n"


def trec(data: Path) -> tuple[list[Example], Sequence[Example]]:
    """Six kinds of questions: rows to draw from, and rows to score."""
    parts = gpt.trec(data, 10**9)
    return sorted([*parts["train"], *parts["choose"]], key=lambda one: one.where), parts["score"]


def sst2(data: Path) -> tuple[list[Example], Sequence[Example]]:
    """Opinions of films, two labels."""
    train, dev = (
        Classify.read(data / "sst2" / f"{name}.tsv", Reading(), labelled=True)[0]
        for name in ("train", "dev")
    )
    return train, gpt.spread(dev, SCORED)


def drawn(pool: Sequence[Example], rows: int, seed: int) -> tuple[list[Example], list[Example]]:
    """So many rows of every label, and as many others, as far as there are."""
    by: dict[str, list[Example]] = {}
    for place in Permutation(len(pool), seed, 0)(np.arange(len(pool))).tolist():
        by.setdefault(str(pool[place].label), []).append(pool[place])
    labels = sorted(by)
    return (
        [one for label in labels for one in by[label][:rows]],
        [one for label in labels for one in by[label][rows : 2 * rows]],
    )


def accuracy(
    way: str,
    settings: Mapping[str, Any],
    learned: list[Example],
    choosing: list[Example],
    scored: Sequence[Example],
    out: Path,
    seed: int,
) -> float:
    """Of a model that learned in this way, on rows that chose nothing."""
    if way == FROZEN:
        return frozen(learned, scored)
    finetune("classify", minilm(), train=learned, dev=choosing, out=out, seed=seed, **settings)
    return float(evaluate(str(out), scored)["accuracy"])


def frozen(learned: Sequence[Example], scored: Sequence[Example]) -> float:
    """Of a logistic regression on vectors that learned nothing."""
    labels = sorted({str(one.label) for one in learned})
    vectors = [
        torch.from_numpy(bertkit.embed(minilm(), [one.text for one in rows]))
        for rows in (learned, scored)
    ]
    targets = [
        torch.tensor([labels.index(str(one.label)) for one in rows]) for rows in (learned, scored)
    ]
    weight, bias = fit_logistic(vectors[0], targets[0], labels=len(labels))
    answered = (vectors[1].double() @ weight.T + bias).argmax(1)
    return float((answered == targets[1]).double().mean())


def compared(lines: Sequence[Line]) -> list[kept.Row]:
    """Of each task and size our mean beside that of each other way, over the seeds both have."""
    rows = []
    by = {(line.task, line.rows, line.way, line.seed): 100 * line.accuracy for line in lines}
    for task, size in dict.fromkeys((line.task, line.rows) for line in lines):
        for way, target in TARGETS.items():
            seeds = [
                s for s in range(100) if {(task, size, w, s) for w in (OURS, way)} <= by.keys()
            ]
            if not seeds:
                continue
            ours, theirs = ([by[task, size, w, s] for s in seeds] for w in (OURS, way))
            rows.append(
                kept.row(
                    f"{task}, {size} rows a label", mean(ours), mean(theirs), peer_name=way,
                    unit="accuracy", target=target, better="higher",
                    how=(kept.How(spread(ours, {})), kept.How(spread(theirs, WAYS[way]))),
                )
            )  # fmt: skip
    return rows


def spread(found: Sequence[float], settings: Mapping[str, Any]) -> str:
    """The standard deviation over seeds, and settings that are not the defaults, in words."""
    told = [f"{name} {value:g}" for name, value in settings.items()]
    sd = f", sd {stdev(found):.1f}" if len(found) > 1 else ""
    return "; ".join([f"seeds: {len(found)}{sd}", *told])
