"""Distilling a fine-tuned MiniLM into 3 and into 2 of its 6 layers, on three tasks of real data.

A tenth of the rows to learn from is held apart: by it the best epoch of every model is chosen, and
nothing else. The teacher is the better, by that tenth, of two: one that learns at the rate of the
comparison with `Trainer`, and one with the students' rate and epochs. Students then learn under the
teacher and, beside it, alone: the same layers, rows, epochs and rate, from the labels only. On MRPC
they also learn under TinyBERT's loss with one of its terms left out. Scores are those on dev, which
nobody has seen.

Speed is that of answering dev, tokenizing included, and that of the model alone, by the same engine
at precision auto, teacher and student in turn; a student need not have learned for that. Each score
is a line of `distill.jsonl` beside the results and not measured again; `--rows` takes the first
rows of each task alone, which are other scores. BERTKIT_DATA names the folder of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from benchmarks import kept
from benchmarks.embed import minilm
from benchmarks.finetune import WORKS, chosen, data_folder, numbers, read
from benchmarks.harness import Options, bf16_here, compare
from benchmarks.kept import How
from bertkit.checkpoint.folder import load
from bertkit.console import quietly
from bertkit.models.surgery import keep_layers
from bertkit.objectives.distill import Terms, usual_layers
from bertkit.pipelines import Answer, answering
from bertkit.recipes.distill import distill
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.storage import write_text


class Recipe(NamedTuple):
    """How students learn a task."""

    epochs: int
    batch_size: int
    learning_rate: float
    terms: Terms = Terms()


RECIPES = {
    "sst2": Recipe(3, 32, 3e-4),
    "conll2003": Recipe(3, 32, 3e-4),
    "mrpc": Recipe(5, 32, 3e-4, Terms(labels=1.0, outputs=0.0, attention=1 / 3)),
}

STUDENTS = {3: (0.98, 1.9), 2: (0.96, 2.7)}
"""Layers -> targets: the share of the teacher's score, and how many times as fast."""

TEACHER, UNDER, ALONE = "the teacher", "under its teacher", "alone"
HELD = 10
"""Every tenth row is held apart."""
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
    """A line of the log: what one model came to on dev."""

    task: str
    rows: int
    layers: int
    kind: str
    seed: int
    score: str
    value: float
    learning_rate: float
    epochs: int
    machine: kept.Machine
    versions: dict[str, str]


class Task(NamedTuple):
    """A task and its rows: to learn from, to choose epochs by, to score."""

    name: str
    learn: list[Any]
    held: list[Any]
    dev: list[Any]

    @property
    def told(self) -> str:
        return f"{self.name}, {len(self.learn):,} rows"


def main(options: Options) -> None:
    data, log = data_folder(), kept.log_of("distill")
    names = chosen(options.tasks or ",".join(RECIPES), data)
    seeds = numbers(options.seeds or ("0,1" if options.quick else "0,1,2"))
    if unknown := set(names) - RECIPES.keys():
        raise SystemExit(f"--tasks: {min(unknown)!r} is none of {','.join(RECIPES)}")
    lines = [] if options.quick else read_log(log)
    if options.fresh and not options.quick:
        lines = [line for line in lines if line.task not in names]
    kept.refuse_others(log, [(line.machine, line.versions) for line in lines])
    book = options.book("distill", lambda what, _: what.split(",")[0] in names)
    if options.fresh and log.exists() and not options.quick:
        write_text(log, "".join(map(written, lines)))
    for name in names:
        task = task_of(name, data, options)
        with TemporaryDirectory() as place, quietly():
            for line in learned(task, lines, seeds, Path(place), options):
                lines.append(line)
                if not options.quick:
                    kept.append(log, written(line))
                book.add(*compared(task, lines))
            if not options.late:
                for row in speeds(task, Path(place), lines, book, options):
                    book.add(row)
    book.close()


def read_log(path: Path) -> list[Line]:
    """What was measured before."""
    return kept.lines(path, Line)


def written(line: Line) -> str:
    return msgspec.json.encode(line).decode() + "\n"


def task_of(name: str, data: Path, options: Options) -> Task:
    """A task, its rows to learn from parted; the first `rows` of them where a number is given."""
    train, dev = read(WORKS[name], data, "quick" if options.quick else "whole")
    train = train[: options.rows]
    learn = [row for place, row in enumerate(train) if place % HELD]
    return Task(name, learn, train[::HELD], dev)


def kinds(name: str) -> Iterator[tuple[int, str, Terms]]:
    """The students of a task."""
    for layers in STUDENTS:
        yield layers, UNDER, RECIPES[name].terms
        yield layers, ALONE, ON_LABELS
    if name == PARTS_OF[0]:
        for kind, terms in PARTS.items():
            yield PARTS_OF[1], kind, terms


def learned(
    task: Task, lines: list[Line], seeds: list[int], place: Path, options: Options
) -> Iterator[Line]:
    """A line for the teacher and for each student, of those that are asked for and not there."""
    known = {(n.layers, n.kind, n.seed): n for n in of(task, lines)}
    if not any(kind == TEACHER for _, kind, _ in known):
        yield (line := teacher(task, place, options.quick))
        known[line.layers, line.kind, line.seed] = line
    for seed in seeds:
        for layers, kind, terms in kinds(task.name):
            asked = options.only.lower() in f"{layers} layers {kind}"
            if (layers, kind, seed) in known or not asked or options.late:
                continue
            settings = settings_of(task.name, quick=options.quick, seed=seed)
            out = place / f"{layers}-{kind}-{seed}"
            distill(
                taught(task, lines, place, options.quick),
                layers=layers,
                train=task.learn,
                dev=task.held,
                out=out,
                settings=settings,
                terms=terms,
            )
            yield line_of(task, layers, kind, settings, out)


def of(task: Task, lines: list[Line]) -> list[Line]:
    """The lines of a task with as many rows."""
    return [n for n in lines if n.task == task.name and n.rows == len(task.learn)]


def settings_of(name: str, *, quick: bool, seed: int = 0, slow: bool = False) -> Finetune:
    """The students' settings, or if `slow` those of the comparison with `Trainer`."""
    recipe, work = RECIPES[name], WORKS[name]
    return Finetune(
        epochs=1 if quick else max(work.epochs, 2) if slow else recipe.epochs,
        batch_size=recipe.batch_size,
        learning_rate=work.learning_rate if slow else recipe.learning_rate,
        length=work.length,
        seed=seed,
        device="cpu",
    )


def line_of(task: Task, layers: int, kind: str, settings: Finetune, out: Path) -> Line:
    """What a model's folder comes to on dev."""
    ready = answering(out, precision="auto")
    answers = ready.answers(task.dev, long=ready.task.long_of_files())
    score = WORKS[task.name].scores[0]
    assert settings.learning_rate is not None
    return Line(
        task=task.name,
        rows=len(task.learn),
        layers=layers,
        kind=kind,
        seed=settings.seed,
        score=score,
        value=ready.task.score(answers, task.dev)[score],
        learning_rate=settings.learning_rate,
        epochs=settings.epochs,
        machine=kept.machine(),
        versions=kept.versions(),
    )


def teacher(task: Task, place: Path, quick: bool) -> Line:
    """The better of two teachers, by the rows that are held apart; its folder is kept."""
    score, work = WORKS[task.name].scores[0], WORKS[task.name].task
    found = {}
    for slow in (True, False):
        settings, out = settings_of(task.name, quick=quick, slow=slow), place / f"teacher-{slow}"
        scores = finetune(
            work, minilm(), train=task.learn, dev=task.held, out=out, settings=settings
        )
        found[slow] = scores[score], settings, out
    _, settings, out = max(found.values(), key=lambda each: each[0])
    out.rename(place / "teacher")
    return line_of(task, 6, TEACHER, settings, place / "teacher")


def taught(task: Task, lines: list[Line], place: Path, quick: bool) -> Path:
    """The teacher's folder, made again where another run chose it."""
    out = place / "teacher"
    if not out.exists():
        (line,) = (n for n in of(task, lines) if n.kind == TEACHER)
        slow = line.learning_rate != RECIPES[task.name].learning_rate
        settings = settings_of(task.name, quick=quick, slow=slow)
        work = WORKS[task.name].task
        finetune(work, minilm(), train=task.learn, dev=task.held, out=out, settings=settings)
    return out


def compared(task: Task, lines: list[Line]) -> Iterator[kept.Row]:
    """Students beside their teacher and beside each other."""
    by: dict[tuple[int, str], list[Line]] = {}
    for line in of(task, lines):
        by.setdefault((line.layers, line.kind), []).append(line)
    above = by[6, TEACHER]
    for (layers, kind), own in by.items():
        if kind == UNDER:
            yield row(task, own, above, "its teacher of 6 layers", STUDENTS[layers][0])
            if (layers, ALONE) in by:
                yield row(task, own, by[layers, ALONE], "alone", 1.0)
        elif kind == ALONE:
            yield row(task, own, above, "the teacher of 6 layers", STUDENTS[layers][0])
        elif kind in PARTS:
            yield row(task, own, by[layers, next(iter(PARTS))], "TinyBERT's terms", 1.0)


def row(task: Task, own: list[Line], other: list[Line], name: str, target: float) -> kept.Row:
    line = own[0]
    return kept.row(
        f"{task.told}, {line.layers} layers {line.kind}, {line.score}",
        mean(n.value for n in own),
        max(mean(n.value for n in other), 1e-9),  # a few rows teach some students nothing
        peer_name=name,
        unit="",
        target=target,
        better="higher",
        how=(told(own), told(other)),
    )


def told(lines: list[Line]) -> How:
    """Scores with their spread, and the settings they come of."""
    values = [line.value for line in lines]
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    settings = f"{lines[0].epochs} epochs at {lines[0].learning_rate:g}, seeds: {len(values)}"
    return How(f"{mean(values):.4f}{spread}, {settings}")


# ---- speed


def speeds(
    task: Task, place: Path, lines: list[Line], book: kept.Book, options: Options
) -> Iterator[kept.Row]:
    """How many times as fast as its teacher a student is: from texts to answers, and the model
    alone, on what was tokenized before."""
    todo = [
        (layers, target, what)
        for layers, (_, target) in STUDENTS.items()
        for what in ("answering dev", "the model alone")
        if book.wanted(f"{task.name}, {layers} layers, {what}", "its teacher of 6 layers")
    ]
    if not todo:
        return
    big = answering(taught(task, lines, place, options.quick), precision="auto")
    how = How("bf16" if bf16_here() else "fp32", 1.0)
    for layers, target, what in todo:
        loaded = load(big.loaded.folder)
        few = keep_layers(loaded.model, usual_layers(layers, loaded.model.config.layers))
        student = answering(replace(loaded, model=few), precision="auto")
        of = answers if what == "answering dev" else outputs
        yield compare(
            f"{task.name}, {layers} layers, {what}",
            of(student, task.dev),
            of(big, task.dev),
            peer_name="its teacher of 6 layers",
            unit="s",
            work=None,
            target=target,
            how=(how, how),
        )


def answers(ready: Answer[Any], dev: list[Any]) -> Any:
    """What answers dev when called."""
    policy = ready.task.long_of_files()
    return lambda: ready.answers(dev, long=policy)


def outputs(ready: Answer[Any], dev: list[Any]) -> Any:
    """What asks the model alone about dev when called."""
    task, length = ready.task, ready.loaded.length
    policy = task.long_of_files()
    features = task.features(dev, ready.tokenizer, length, long=policy, labelled=False)
    return lambda: task.run(ready.engine, features)
