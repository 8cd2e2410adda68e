"""Distilling a fine-tuned MiniLM into 3 and into 2 of its 6 layers, on three tasks of real data.

For each task a teacher is fine-tuned once; then students learn, with three seeds each, under the
teacher and, as the peer, without it: the same layers, rows, epochs and rate, from the labels alone.
Scores are those of the best epoch on dev; speed is that of answering dev, tokenizing included, by
the same engine at precision auto, teacher and student in turn. BERTKIT_DATA names the folder of
the data.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import harness
from benchmarks.embed import minilm
from benchmarks.finetune import FEW, WORKS, Work, data_folder, read
from bertkit.console import quietly
from bertkit.objectives.distill import Terms
from bertkit.pipelines import Answer, answering
from bertkit.recipes.distill import distill
from bertkit.recipes.finetune import Finetune, finetune

TASKS = {"mrpc": 5, "sst2": 3, "conll2003": 3}
"""Epochs of the students; the teacher has those of the comparison with `Trainer`, or 2 at least."""

STUDENTS = {3: (0.98, 1.9), 2: (0.96, 2.7)}
"""Layers -> targets: the share of the teacher's score, and how many times as fast."""

ALONE = Terms(labels=1.0, outputs=0.0, states=0.0)
"""The same student without its teacher."""


def main(*, quick: bool = False) -> None:
    folder = data_folder()
    rows: list[harness.Row] = []
    for name, epochs in TASKS.items():
        with TemporaryDirectory() as place:
            rows += measure(name, epochs, folder, Path(place), quick=quick)
        if not quick:
            harness.write("distill", rows)
    if quick:
        harness.show("distill, quick", rows)


def measure(name: str, epochs: int, folder: Path, place: Path, *, quick: bool) -> list[harness.Row]:
    work = WORKS[name]
    train, dev = read(work, folder, quick=quick)
    seeds = 2 if quick else 3
    if quick:
        epochs, train, dev = 1, train[:FEW], dev[:FEW]
    score = work.scores[0]
    with quietly():
        taught = finetune(
            work.task,
            minilm(),
            train=train,
            dev=dev,
            out=place / "teacher",
            settings=settings(work, max(work.epochs, 2)),
        )
        found = []
        for layers, (share, speed) in STUDENTS.items():
            scores: dict[str, list[float]] = {}
            for kind, terms in (("distilled", Terms()), ("alone", ALONE)):
                summary = distill(
                    place / "teacher",
                    layers=layers,
                    train=train,
                    dev=dev,
                    out=place / f"{kind}-{layers}",
                    settings=settings(work, epochs),
                    terms=terms,
                    seeds=seeds,
                )
                scores[kind] = summary[score]["each"]
            about = f"{name}, {layers} layers"
            found += [
                harness.row(
                    f"{about}, {score}: {told(scores['distilled'])}",
                    mean(scores["distilled"]),
                    taught[score],
                    peer_name="its teacher of 6 layers",
                    unit="",
                    target=share,
                    better="higher",
                ),
                harness.row(
                    f"{about}, {score}, alone {told(scores['alone'])}",
                    mean(scores["distilled"]),
                    mean(scores["alone"]),
                    peer_name="the same without a teacher",
                    unit="",
                    target=1.0,
                    better="higher",
                ),
                harness.compare(
                    f"{about}, answering dev",
                    answers(answering(place / f"distilled-{layers}", precision="auto"), dev),
                    answers(answering(place / "teacher", precision="auto"), dev),
                    peer_name="its teacher of 6 layers",
                    unit="s",
                    work=None,
                    target=speed,
                ),
            ]
    return found


def settings(work: Work, epochs: int) -> Finetune:
    return Finetune(
        epochs=epochs,
        batch_size=work.batch_size,
        learning_rate=work.learning_rate,
        length=work.length,
        device="cpu",
    )


def answers(ready: Answer[Any], dev: list[Any]) -> Any:
    """What answers dev when called."""
    policy = ready.task.long_of_files()
    return lambda: ready.answers(dev, long=policy)


def told(scores: list[float]) -> str:
    return f"{mean(scores):.4f} ± {stdev(scores):.4f}"
