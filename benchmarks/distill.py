"""Distilling a fine-tuned MiniLM into 3 and into 2 of its 6 layers, on three tasks of real data.

For each task a teacher is fine-tuned once; then students learn, with three seeds each, under the
teacher and, beside it, without: the same layers, rows, epochs and rate, from the labels alone. On
MRPC they also learn under TinyBERT's loss with one of its terms left out. Scores are those of the
best epoch on dev.

Speed is that of answering dev, tokenizing included, and that of the model alone, by the same engine
at precision auto, teacher and student in turn; a student need not have learned for that. Scores
that were measured are not measured again (results/distill.jsonl), so that a run that was stopped
goes on. BERTKIT_DATA names the folder of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from benchmarks import harness
from benchmarks.embed import minilm
from benchmarks.finetune import FEW, WORKS, data_folder, read
from bertkit.checkpoint.folder import load
from bertkit.console import quietly
from bertkit.models.layers import keep_layers
from bertkit.objectives.distill import Terms, usual_layers
from bertkit.pipelines import Answer, answering
from bertkit.recipes.distill import distill
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.storage import append_text

LOG = harness.RESULTS / "distill.jsonl"


class Recipe(NamedTuple):
    """How students learn a task; the teacher has the epochs of the comparison with `Trainer`, or 2
    at least."""

    epochs: int
    batch_size: int
    learning_rate: float
    terms: Terms = Terms()


TASKS = {
    "sst2": Recipe(3, 32, 3e-4),
    "conll2003": Recipe(3, 32, 3e-4),
    "mrpc": Recipe(5, 32, 3e-4, Terms(labels=1.0, outputs=0.0, attention=1.0)),
}

STUDENTS = {3: (0.98, 1.9), 2: (0.96, 2.7)}
"""Layers -> targets: the share of the teacher's score, and how many times as fast."""

UNDER, ALONE = "under its teacher", "alone"
ON_LABELS = Terms(labels=1.0, outputs=0.0, states=0.0)
TINY = Terms(labels=0.0, outputs=1.0, temperature=1.0, states=1.0, attention=1.0)
PARTS: Mapping[str, Terms] = {
    "TinyBERT's terms": TINY,
    "without attention": msgspec.structs.replace(TINY, attention=0.0),
    "without states": msgspec.structs.replace(TINY, states=0.0),
    "without states and attention": msgspec.structs.replace(TINY, states=0.0, attention=0.0),
}
"""Of the students of 3 layers on MRPC; without outputs, on labels instead, they are those under
their teacher. Jiao et al. 2020, table 3."""
PARTS_OF = ("mrpc", 3)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log: what students of one kind came to, a score a seed, and their teacher."""

    task: str
    layers: int
    kind: str
    score: str
    each: list[float]
    teacher: float


def main(*, quick: bool = False) -> None:
    data = data_folder()
    lines = [] if quick else read_log()
    fast: list[harness.Row] = []
    for name in TASKS:
        with TemporaryDirectory() as place, quietly():
            fast += speeds(name, data, Path(place), quick=quick)
            for line in learned(name, lines, data, Path(place), quick=quick):
                lines.append(line)
                if not quick:
                    append_text(LOG, msgspec.json.encode(line).decode() + "\n")
        if not quick:  # what is there stays, should the rest be stopped
            harness.write("distill", [*compared(lines), *fast])
    if quick:
        harness.show("distill, quick", [*compared(lines), *fast])


def read_log() -> list[Line]:
    """What was measured before."""
    lines = LOG.read_text(encoding="utf-8").splitlines() if LOG.exists() else []
    return [msgspec.json.decode(line, type=Line) for line in lines]


def kinds(name: str) -> Iterator[tuple[int, str, Terms]]:
    """The students of a task."""
    for layers in STUDENTS:
        yield layers, UNDER, TASKS[name].terms
        yield layers, ALONE, ON_LABELS
    if name == PARTS_OF[0]:
        for kind, terms in PARTS.items():
            yield PARTS_OF[1], kind, terms


def learned(
    name: str, lines: list[Line], data: Path, place: Path, *, quick: bool
) -> Iterator[Line]:
    """A line for each kind of student that has none."""
    done = {(line.layers, line.kind) for line in lines if line.task == name}
    for layers, kind, terms in kinds(name):
        if (layers, kind) in done:
            continue
        work, (train, dev) = WORKS[name], examples(name, data, quick=quick)
        recipe = TASKS[name]
        found = distill(
            teacher(name, data, place, quick=quick),
            layers=layers,
            train=train,
            dev=dev,
            out=place / f"{layers}-{kind}",
            settings=Finetune(
                epochs=1 if quick else recipe.epochs,
                batch_size=recipe.batch_size,
                learning_rate=recipe.learning_rate,
                length=work.length,
                device="cpu",
            ),
            terms=terms,
            seeds=2 if quick else 3,
        )
        score = work.scores[0]
        known = msgspec.json.decode((place / "teacher" / "scores.json").read_bytes())
        yield Line(
            task=name,
            layers=layers,
            kind=kind,
            score=score,
            each=found[score]["each"],
            teacher=known["dev"][score],
        )


def teacher(name: str, data: Path, place: Path, *, quick: bool) -> Path:
    """The teacher's folder, the same in every run; made when it is asked for first."""
    out, work = place / "teacher", WORKS[name]
    if not out.exists():
        train, dev = examples(name, data, quick=quick)
        settings = Finetune(
            epochs=1 if quick else max(work.epochs, 2),
            batch_size=work.batch_size,
            learning_rate=work.learning_rate,
            length=work.length,
            device="cpu",
        )
        finetune(work.task, minilm(), train=train, dev=dev, out=out, settings=settings)
    return out


def examples(name: str, data: Path, *, quick: bool) -> list[list[Any]]:
    train, dev = read(WORKS[name], data, quick=quick)
    return [train[:FEW], dev[:FEW]] if quick else [train, dev]


def compared(lines: list[Line]) -> Iterator[harness.Row]:
    """Students beside their teacher and beside each other."""
    by = {(line.task, line.layers, line.kind): line for line in lines}
    for (task, layers, kind), line in by.items():
        own = f"{task}, {layers} layers {kind}, {line.score} {told(line.each)}"
        if kind == UNDER:
            share = STUDENTS[layers][0]
            yield row(own, line, line.teacher, "its teacher of 6 layers", share)
            if (task, layers, ALONE) in by:
                alone = by[task, layers, ALONE]
                yield row(own, line, mean(alone.each), f"alone, {told(alone.each)}", 1.0)
        elif kind in PARTS:
            whole = by[task, layers, next(iter(PARTS))]
            yield row(own, line, mean(whole.each), "TinyBERT's terms", 1.0)


def row(what: str, line: Line, other: float, name: str, target: float) -> harness.Row:
    other = max(other, 1e-9)  # a few rows teach some students nothing
    return harness.row(
        what, mean(line.each), other, peer_name=name, unit="", target=target, better="higher"
    )


def told(scores: list[float]) -> str:
    return f"{mean(scores):.4f} ± {stdev(scores):.4f}"


# ---- speed


def speeds(name: str, data: Path, place: Path, *, quick: bool) -> Iterator[harness.Row]:
    """How many times as fast as its teacher a student is: from texts to answers, and the model
    alone, on what was tokenized before."""
    _, dev = examples(name, data, quick=quick)
    taught = answering(teacher(name, data, place, quick=quick), precision="auto")
    for layers, (_, target) in STUDENTS.items():
        loaded = load(taught.loaded.folder)
        kept = keep_layers(loaded.model, usual_layers(layers, loaded.model.config.layers))
        student = answering(replace(loaded, model=kept), precision="auto")
        for what, of in (("answering dev", answers), ("the model alone", outputs)):
            yield harness.compare(
                f"{name}, {layers} layers, {what}",
                of(student, dev),
                of(taught, dev),
                peer_name="its teacher of 6 layers",
                unit="s",
                work=None,
                target=target,
            )


def answers(ready: Answer[Any], dev: list[Any]) -> Any:
    """What answers dev when called."""
    policy = ready.task.long_of_files()
    return lambda: ready.answers(dev, long=policy)


def outputs(ready: Answer[Any], dev: list[Any]) -> Any:
    """What asks the model alone about dev when called."""
    task, length = ready.task, ready.loaded.length
    policy = task.long_of_files()
    features = task.features(dev, ready.tokenizer, length, long=policy, learn=False)
    return lambda: task.run(ready.engine.model, features, ready.engine.budget_tokens)
