"""Fine-tuning MiniLM: bertkit with its defaults against transformers' `Trainer`.

Five tasks on real data, which BERTKIT_DATA names the folder of. All sides learn from the same rows
for as many epochs, 32 rows a step at a learning rate of 5e-5; from the small slice of squad, 16
windows a step at 3e-4, so that something is learned. The rest is each side's own. `Trainer` is
asked in three ways: as it comes (fp32, random batches padded to their longest row, 8 rows a batch
where it predicts), grouped by length, and so in bf16; in the latter two it predicts rows sorted by
length, 32 a batch.

Training goes from files to a saved folder: reading, loading, tokenizing, learning, saving. With
`--speed`, which takes minutes, it is one epoch of some rows, and every side answers 8 rows of dev
at its end; the rows of a task are medians over the seeds. Without, which takes hours, it is the
whole, and ours alone scores dev after each epoch, within its time. Prediction goes from texts to
answers with the model loaded and warm, tokenizing included.

Scores are those after the last epoch, which is what the peer ends with; bertkit would keep the
best epoch. Each run is a line of `finetune.jsonl` or `finetune-speed.jsonl` beside the results.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import msgspec

from benchmarks import kept
from benchmarks.embed import minilm
from benchmarks.harness import Options, bf16_here
from benchmarks.text import stsb
from benchmarks.trainer import Labels, Numbers, Padding, Peer, Rows, Spans, Tags
from bertkit.checkpoint.run_directory import SCORES
from bertkit.console import quietly
from bertkit.pipelines import answering
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.storage import append_text, write_text
from bertkit.tasks import find
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import policy_of_files

TRAINING, PREDICTION, SCORE = 4.0, 3.0, 0.99
"""Targets beside `Trainer` as it comes: how many times faster, and the least share of its score."""

FEW = 64
"""Rows of a quick run, and of the unmeasured one before each task."""
WARM = 32
"""Rows that are answered before those whose time is taken."""
CHECKED = 8
"""Rows of dev that are answered within the time of training with --speed."""

Side = Literal["ours", "default", "grouped", "bf16"]


@dataclass(frozen=True)
class Way:
    """How `Trainer` is asked."""

    name: str
    settings: str
    training: float
    """Target: how many times faster ours is."""
    prediction: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    predict: Mapping[str, Any] = field(default_factory=dict)
    by_length: bool = False
    """Whether rows are sorted by length before it predicts."""


GROUPED = {"train_sampling_strategy": "group_by_length"}
WAYS: Mapping[Side, Way] = {
    "default": Way("transformers Trainer, fp32", "fp32, random order", TRAINING, PREDICTION),
    "grouped": Way(
        "transformers Trainer, fp32, grouped by length",
        "fp32, grouped by length",
        1.5,
        1.5,
        GROUPED,
        {"per_device_eval_batch_size": 32},
        by_length=True,
    ),
    "bf16": Way(
        "transformers Trainer, bf16, grouped by length",
        "bf16 autocast, grouped by length",
        2.0,
        1.5,
        {**GROUPED, "bf16": True},
        {"per_device_eval_batch_size": 32, "bf16_full_eval": True},
        by_length=True,
    ),
}


def ways() -> dict[Side, Way]:
    """Those that this processor has instructions for."""
    return {side: way for side, way in WAYS.items() if side != "bf16" or bf16_here()}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a log: one side's run of a task with one seed. Times are in seconds."""

    task: str
    seed: int
    side: Side
    train: float
    predict: float
    train_fill: float | None
    """Real tokens of those that were computed, padding included."""
    predict_fill: float | None
    precision: str
    scores: dict[str, float]
    """On dev, after the last epoch."""
    answered: dict[str, float]
    """Of the answers whose time was taken: ours are of the best epoch, at precision auto."""
    train_rows: int
    dev_rows: int
    epochs: int
    date: str
    machine: kept.Machine
    versions: dict[str, str]


def main(options: Options) -> None:
    folder = data_folder()
    names = chosen(options.tasks, folder)
    seeds = numbers(options.seeds or ("0" if options.quick else "0,1,2"))
    log = kept.LOCAL / kept.processor_class() / f"finetune{'-speed' * options.speed}.jsonl"
    runs = [] if options.quick else read_log(log)
    if options.fresh:
        runs = [run for run in runs if run.task not in names or run.seed not in seeds]
    book = options.book(
        "finetune",
        lambda what, _: what.split(",")[0] in names and (" rows" in what) == options.speed,
    )
    if options.fresh and log.exists() and not options.quick:
        write_text(log, "".join(map(line, runs)))
    if not bf16_here():
        book.leave_out("no bf16 rows of the peer: this processor has no bf16 instructions")
    with processes() as run:
        for name in names:
            asked = [side for side, way in ways().items() if options.only in way.name]
            turns = [(seed, side) for seed in seeds for side in ("ours", *asked)]
            done = {(r.seed, r.side) for r in runs if r.task == name}
            todo = [turn for turn in turns if turn not in done]
            warmed: set[str] = set()
            for seed, side in todo:
                if options.late:
                    break
                if side not in warmed and not options.quick:
                    warmed.add(side)
                    run(name, 0, side, folder, "quick")
                how = "quick" if options.quick else "speed" if options.speed else "whole"
                runs.append(run(name, seed, side, folder, how))
                if not options.quick:
                    kept.progress(f"{log.stem}: {line(runs[-1])[:100]}")
                    log.parent.mkdir(parents=True, exist_ok=True)
                    append_text(log, line(runs[-1]))
            book.add(*rows_of([r for r in runs if r.task == name], speed=options.speed))
    book.close()
    if not options.speed:
        print(markdown(runs))


# ---- what to run


def data_folder() -> Path:
    folder = os.environ.get("BERTKIT_DATA")
    if not folder:
        raise SystemExit("BERTKIT_DATA is not set: let it name the folder of the data sets")
    return Path(folder)


def chosen(tasks: str | None, folder: Path) -> list[str]:
    """The names of the tasks. Raises: SystemExit for one that is unknown or has no data."""
    names = list(WORKS) if tasks is None else tasks.split(",")
    for name in names:
        if name not in WORKS:
            raise SystemExit(f"--tasks: {name!r} is none of {','.join(WORKS)}")
        for file in WORKS[name].files:
            if not (folder / file).is_file():
                raise SystemExit(f"BERTKIT_DATA: {folder} holds no {file}")
    return names


def numbers(seeds: str) -> list[int]:
    if not all(part.isdecimal() for part in seeds.split(",")):
        raise SystemExit(f"--seeds: {seeds!r} is no list of numbers; write 0,1,2")
    return sorted({int(part) for part in seeds.split(",")})


Much = Literal["quick", "speed", "whole"]


def read(work: Work, folder: Path, much: Much) -> list[list[Any]]:
    """The examples of train and of dev."""
    found = []
    most = {"quick": (FEW, FEW), "speed": work.timed, "whole": work.rows}[much]
    for file, wanted in zip(work.files, most, strict=True):
        if work.peer is Numbers:
            rows = stsb(folder / file)
        else:
            rows = read_examples(find(work.task), folder / file)
        found.append(rows[:wanted])
    return found


def quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


# ---- the sides


class Measured(NamedTuple):
    """What one side's run yields, times in seconds."""

    train: float
    predict: float
    train_fill: float
    predict_fill: float
    scores: dict[str, float]
    answered: dict[str, float]


@contextmanager
def processes() -> Iterator[Callable[..., Run]]:
    """`measure`, in a process for each side: what one sets, such as how memory is held, is not
    to help the other.
    """
    with ExitStack() as stack:
        pools: dict[str, ProcessPoolExecutor] = {}

        def run(name: str, seed: int, side: Side, *rest: Any) -> Run:
            if side not in pools:
                pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
                pools[side] = stack.enter_context(pool)
            return pools[side].submit(measure, name, seed, side, *rest).result()

        yield run


def measure(name: str, seed: int, side: Side, folder: Path, much: Much) -> Run:
    """One side's run of a task: its first rows for one epoch, but for the whole."""
    work = WORKS[name]
    epochs = work.epochs if much == "whole" else 1
    rows = [0, 0]

    def examples() -> list[list[Any]]:
        found = read(work, folder, much)
        rows[:] = map(len, found)
        return found

    whole = much == "whole"
    with quietly():
        if side == "ours":
            found = ours(work, examples, epochs, seed, whole=whole)
        else:
            found = peers(work, examples, epochs, seed, WAYS[side], whole=whole)
    gc.collect()
    run = Run(
        task=name,
        seed=seed,
        side=side,
        **found._asdict(),
        precision="bf16" if bf16_here() and side in ("ours", "bf16") else "fp32",
        train_rows=rows[0],
        dev_rows=rows[1],
        epochs=epochs,
        date=kept.now(),
        machine=kept.machine(),
        versions=kept.versions(),
    )
    if much != "quick":
        said = "  ".join(f"{score} {run.scores[score]:.4f}" for score in work.scores)
        print(
            f"{name}, seed {seed}, {side}: training {run.train:.1f} s, "
            f"prediction {run.predict:.1f} s, {said}",
            flush=True,
        )
    return run


def ours(
    work: Work,
    examples: Callable[[], list[list[Any]]],
    epochs: int,
    seed: int,
    *,
    whole: bool,
) -> Measured:
    """Run `finetune` with its defaults, then predict with the model that it saved."""
    settings = Finetune(
        epochs=epochs,
        batch_size=work.batch_size,
        learning_rate=work.learning_rate,
        length=work.length,
        seed=seed,
        device="cpu",
    )
    with TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        start = time.perf_counter()
        train, dev = examples()
        checked = dev if whole else dev[:CHECKED]
        finetune(work.task, minilm(), train=train, dev=checked, out=out, settings=settings)
        trained = time.perf_counter() - start
        known = json.loads((out / SCORES).read_text(encoding="utf-8"))
        answer = answering(out, work.task, precision="auto", device="cpu")
    policy = policy_of_files(answer.task)
    answer.answers(dev[:WARM], long=policy)
    start = time.perf_counter()
    answers = answer.answers(dev, long=policy)
    predicted = time.perf_counter() - start
    answered = answer.task.score(answers, dev)
    last = known["epochs"][-1] if whole else answered
    return Measured(trained, predicted, 1.0, 1.0, last, answered)  # it computes no padding


def peers(
    work: Work,
    examples: Callable[[], list[list[Any]]],
    epochs: int,
    seed: int,
    way: Way,
    *,
    whole: bool,
) -> Measured:
    """`Trainer.train`, then `Trainer.predict` with the same model."""
    import transformers

    quiet_transformers()
    with TemporaryDirectory() as folder:
        shared: dict[str, Any] = {
            "output_dir": folder,
            "seed": seed,
            "use_cpu": True,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
        }
        start = time.perf_counter()
        train, dev = examples()
        transformers.set_seed(seed)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(minilm()))
        side = work.peer(tokenizer, train, work.length)
        model = getattr(transformers, side.model).from_pretrained(str(minilm()), **side.outputs())
        collator = Padding(getattr(transformers, side.collator)(tokenizer))

        def trainer(**given: Any) -> Any:
            made = transformers.Trainer(
                model=model,
                args=transformers.TrainingArguments(**shared, **given),
                data_collator=collator,
                processing_class=tokenizer,
                train_dataset=Rows(side.rows(train, learn=True))
                if "num_train_epochs" in given
                else None,
            )
            made.remove_callback(transformers.PrinterCallback)
            return made

        learner = trainer(
            num_train_epochs=epochs,
            per_device_train_batch_size=work.batch_size,
            learning_rate=work.learning_rate,
            **way.arguments,
        )
        learner.train()
        learner.save_model(folder)
        train_fill = collator.fill()
        # apart, since a learner that groups by length also answers in that order
        predictor = trainer(**way.predict)

        def predict(asked: list[Any]) -> list[Any]:
            rows = side.rows(asked, learn=False)
            places = list(range(len(rows)))
            if way.by_length:
                places.sort(key=lambda place: -len(rows[place]["input_ids"]))
            found = predictor.predict(Rows([rows[place] for place in places])).predictions
            return side.answers(unsorted(found, places), asked)

        if not whole:
            predict(dev[:CHECKED])
        trained = time.perf_counter() - start
        predict(dev[:WARM])
        collator.fill()
        start = time.perf_counter()
        answers = predict(dev)
        predicted = time.perf_counter() - start
    scores = side.score(answers, dev)
    return Measured(trained, predicted, train_fill, collator.fill(), scores, scores)


def unsorted(found: Any, places: Sequence[int]) -> Any:
    """Predictions in the order of their rows again."""
    if isinstance(found, tuple):
        return tuple(unsorted(each, places) for each in found)
    again = found.copy()
    again[places] = found
    return again


# ---- the works


@dataclass(frozen=True)
class Work:
    """One task to measure: `rows` says how many of each file count, from its first on."""

    task: str
    peer: type[Peer]
    files: tuple[str, str]
    epochs: int
    scores: tuple[str, ...]
    """The first is the one compared."""
    rows: tuple[int | None, int | None] = (None, None)
    length: int = 512
    """The longest sequence, in tokens."""
    batch_size: int = 32
    learning_rate: float = 5e-5
    timed: tuple[int, int] = (640, 200)
    """Rows of each file that --speed measures with."""


WORKS = {
    "sst2": Work(
        "classify",
        Labels,
        ("sst2/train.tsv", "sst2/dev.tsv"),
        epochs=1,
        scores=("accuracy",),
        rows=(10_000, None),
        timed=(1280, 256),
    ),
    "mrpc": Work(
        "classify",
        Labels,
        ("mrpc/train.tsv", "mrpc/dev.tsv"),
        epochs=3,
        scores=("accuracy", "f1"),
    ),
    "stsb": Work(
        "classify",
        Numbers,
        ("stsb/sts-train.tsv", "stsb/sts-dev.tsv"),
        epochs=2,
        scores=("spearman",),
    ),
    "conll2003": Work(
        "tag",
        Tags,
        ("conll2003/train.txt", "conll2003/valid.txt"),
        epochs=1,
        scores=("f1",),
        timed=(800, 256),
    ),
    "squad": Work(
        "answer",
        Spans,
        ("squad1/train-v1.1-44articles.json", "squad1/dev-v1.1-24articles.json"),
        epochs=2,
        scores=("f1", "exact"),
        rows=(1000, 1000),
        length=384,
        batch_size=16,
        learning_rate=3e-4,
        timed=(96, 96),
    ),
}


# ---- the log and what it says


def read_log(path: Path) -> list[Run]:
    """Return the runs of a log that were measured on this machine with these versions."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = [msgspec.json.decode(line, type=Run) for line in lines]
    return [run for run in runs if kept.is_comparable(run.machine, run.versions)]


def line(run: Run) -> str:
    return msgspec.json.encode(run).decode() + "\n"


def pairs(runs: Sequence[Run], name: str, side: Side) -> list[tuple[Run, Run]]:
    """Ours and one peer's run of a task with each seed that both have."""
    sides = {(r.seed, r.side): r for r in runs if r.task == name}
    return [
        (sides[seed, "ours"], sides[seed, side])
        for seed in sorted({seed for seed, _ in sides})
        if {(seed, "ours"), (seed, side)} <= sides.keys()
    ]


def times(both: Sequence[tuple[Run, Run]], what: str) -> list[float]:
    """The median seconds of ours and of the peer; `what` is train or predict."""
    return [median(getattr(run, what) for run in side) for side in zip(*both, strict=True)]


def rows_of(runs: Sequence[Run], *, speed: bool) -> list[kept.Row]:
    """Of each task and peer the medians of both times, and the means of the first score."""
    found = []
    for name, work in WORKS.items():
        for side, way in WAYS.items():
            both = pairs(runs, name, side)
            if not both:
                continue
            run, other = both[0]
            part = f" {run.train_rows:,} rows" if speed else ""
            asked = f" {run.dev_rows:,} rows" if speed else " dev"
            more = f"to the answers of {CHECKED} rows" if speed else "to a saved folder"
            scored = "" if speed else ", dev scored after each epoch"
            batch = f"{work.batch_size} rows a step; from files {more}"
            found.append(
                kept.row(
                    f"{name}, training{part}",
                    *times(both, "train"),
                    peer_name=way.name,
                    unit="s",
                    target=way.training,
                    better="lower",
                    how=(
                        kept.How(f"{run.precision}, {batch}{scored}", run.train_fill),
                        kept.How(f"{way.settings}, {batch}", other.train_fill),
                    ),
                )
            )
            order = "sorted by length, 32 a batch" if way.by_length else "in order, 8 a batch"
            found.append(
                kept.row(
                    f"{name}, answering{asked}",
                    *times(both, "predict"),
                    peer_name=way.name,
                    unit="s",
                    target=way.prediction,
                    better="lower",
                    how=(
                        kept.How(run.precision, run.predict_fill),
                        kept.How(f"{other.precision}, {order}", other.predict_fill),
                    ),
                )
            )
            if not speed:
                found += scores_of(name, both, way)
    return found


def scores_of(name: str, both: Sequence[tuple[Run, Run]], way: Way) -> list[kept.Row]:
    """The row of a task's first score, unless a quick run found nothing."""
    score = WORKS[name].scores[0]
    means, said = zip(*(over_seeds(side, score) for side in zip(*both, strict=True)), strict=True)
    if means[1] == 0:
        return []
    return [
        kept.row(
            f"{name}, {score}",
            *means,
            peer_name=way.name,
            unit="",
            target=SCORE,
            better="higher",
            how=(
                kept.How(f"{both[0][0].precision}, seeds: {len(both)}, {said[0]}"),
                kept.How(f"{way.settings}, seeds: {len(both)}, {said[1]}"),
            ),
        )
    ]


def over_seeds(side: Sequence[Run], score: str) -> tuple[float, str]:
    """The mean of a score, and in words with its standard deviation."""
    values = [run.scores[score] for run in side]
    if len(values) == 1:
        return values[0], f"{values[0]:.4f}"
    return mean(values), f"{mean(values):.4f} ± {stdev(values):.4f}"


def markdown(runs: Sequence[Run]) -> str:
    """The same as a table for a page."""
    lines = [
        "| task | rows × epochs | score | bertkit | peer | training, s | ratio | "
        "prediction, s | ratio | peer |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, work in WORKS.items():
        for peer, way in WAYS.items():
            both = pairs(runs, name, peer)
            if not both:
                continue
            run = both[0][0]
            cells = [name, f"{run.train_rows:,} × {run.epochs}", "<br>".join(work.scores)]
            for side in zip(*both, strict=True):
                cells.append("<br>".join(over_seeds(side, score)[1] for score in work.scores))
            for what in ("train", "predict"):
                a, b = times(both, what)
                cells += [f"{a:.1f}, {b:.1f}", f"{b / a:.1f} ×"]
            lines.append(f"| {' | '.join([*cells, way.name])} |")
    return "\n".join(lines)
