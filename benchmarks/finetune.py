"""Fine-tuning MiniLM: bertkit with its defaults against transformers' `Trainer`.

The benchmark has five tasks on data in the directory BERTKIT_DATA. All sides are trained on the
same examples for the same number of epochs, with 32 examples per step and a learning rate of 5e-5.
SQuAD uses 16 windows per step and 3e-4, because its part here is small. Other settings are the
defaults of each library. `Trainer` has three variants: defaults (fp32, random batches padded to
their longest sequence, prediction with 8 sequences per batch), grouped by length, and grouped in
bf16. The latter two sort sequences by length for prediction, with 32 per batch.

The training time is from files to a saved model: reading, loading, tokenization, training and
saving. With `--speed`, which takes minutes, one epoch of some examples is measured, and every side
predicts 8 dev examples at the end; the rows of a task are medians over the seeds. Without
`--speed`, which takes hours, all epochs are measured, and only bertkit's time includes the
evaluation on dev after each epoch. The prediction time is from texts to predictions with a loaded
model after a warmup, including tokenization.

Scores are measured after the last epoch, which is the final model of the baseline; bertkit would
keep the best epoch. Each run is a line of `finetune.jsonl` or `finetune-speed.jsonl` next to the
results.
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
"""Targets for `Trainer` with defaults: minimum speedups, and minimum ratio of the scores."""

FEW = 64
"""Number of examples of a quick run, and of the warmup run before each task."""
WARM = 32
"""Number of examples that are predicted as a warmup."""
CHECKED = 8
"""Number of dev examples that are predicted within the training time, with --speed."""

Side = Literal["ours", "default", "grouped", "bf16"]


@dataclass(frozen=True)
class Way:
    """Variant of `Trainer`."""

    name: str
    settings: str
    training: float
    """Minimum speedup of training."""
    prediction: float
    """Minimum speedup of prediction."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    predict: Mapping[str, Any] = field(default_factory=dict)
    by_length: bool = False
    """Whether to sort sequences by length for prediction."""


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
    """Return the variants that this processor supports."""
    return {side: way for side, way in WAYS.items() if side != "bf16" or bf16_here()}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Line of a log: a run of one side on a task with one seed. Times are in seconds."""

    task: str
    seed: int
    side: Side
    train: float
    predict: float
    train_fill: float | None
    """Fraction of the computed tokens that are not padding."""
    predict_fill: float | None
    precision: str
    scores: dict[str, float]
    """Scores on dev after the last epoch."""
    answered: dict[str, float]
    """Scores of the timed predictions. bertkit predicts with the best epoch, at precision auto."""
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
        lambda title, _: title.split(",")[0] in names and (" rows" in title) == options.speed,
    )
    if options.fresh and log.exists() and not options.quick:
        write_text(log, "".join(map(line, runs)))
    if not bf16_here():
        book.leave_out("no bf16 rows of the peer: this processor has no bf16 instructions")
    with processes() as run:
        for name in names:
            sides = [side for side, way in ways().items() if options.only in way.name]
            turns = [(seed, side) for seed in seeds for side in ("ours", *sides)]
            done = {(r.seed, r.side) for r in runs if r.task == name}
            todo = [turn for turn in turns if turn not in done]
            warmed: set[str] = set()
            for seed, side in todo:
                if options.late:
                    break
                if side not in warmed and not options.quick:
                    warmed.add(side)
                    run(name, 0, side, folder, "quick")
                amount = "quick" if options.quick else "speed" if options.speed else "whole"
                runs.append(run(name, seed, side, folder, amount))
                if not options.quick:
                    kept.progress(f"{log.stem}: {line(runs[-1])[:100]}")
                    log.parent.mkdir(parents=True, exist_ok=True)
                    append_text(log, line(runs[-1]))
            book.add(*rows_of([r for r in runs if r.task == name], speed=options.speed))
    book.close()
    if not options.speed:
        print(markdown(runs))


# ---- Selection of runs


def data_folder() -> Path:
    folder = os.environ.get("BERTKIT_DATA")
    if not folder:
        raise SystemExit("BERTKIT_DATA is not set; set it to the directory of the data sets")
    return Path(folder)


def chosen(tasks: str | None, folder: Path) -> list[str]:
    """Return the names of the tasks, or exit if a task is unknown or its data is missing."""
    names = list(WORKS) if tasks is None else tasks.split(",")
    for name in names:
        if name not in WORKS:
            raise SystemExit(f"--tasks must be in {','.join(WORKS)}, got {name!r}")
        for file in WORKS[name].files:
            if not (folder / file).is_file():
                raise SystemExit(f"BERTKIT_DATA: {folder / file} not found")
    return names


def numbers(seeds: str) -> list[int]:
    if not all(part.isdecimal() for part in seeds.split(",")):
        raise SystemExit(f"--seeds must be a list of integers such as 0,1,2, got {seeds!r}")
    return sorted({int(part) for part in seeds.split(",")})


Amount = Literal["quick", "speed", "whole"]


def read(work: Work, folder: Path, amount: Amount) -> list[list[Any]]:
    """Read the examples of train and dev."""
    found = []
    counts = {"quick": (FEW, FEW), "speed": work.timed, "whole": work.rows}[amount]
    for file, count in zip(work.files, counts, strict=True):
        if work.peer is Numbers:
            rows = stsb(folder / file)
        else:
            rows = read_examples(find(work.task), folder / file)
        found.append(rows[:count])
    return found


def quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


# ---- Measurement of both sides


class Measured(NamedTuple):
    """Results of a run of one side. Times are in seconds."""

    train: float
    predict: float
    train_fill: float
    predict_fill: float
    scores: dict[str, float]
    answered: dict[str, float]


@contextmanager
def processes() -> Iterator[Callable[..., Run]]:
    """Yield a function that calls `measure` in a separate process for each side.

    Process settings of one side, such as memory allocation, then do not affect the other side.
    """
    with ExitStack() as stack:
        pools: dict[str, ProcessPoolExecutor] = {}

        def run(name: str, seed: int, side: Side, *rest: Any) -> Run:
            if side not in pools:
                pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
                pools[side] = stack.enter_context(pool)
            return pools[side].submit(measure, name, seed, side, *rest).result()

        yield run


def measure(name: str, seed: int, side: Side, folder: Path, amount: Amount) -> Run:
    """Run one side on a task; `amount` selects all examples, or one epoch of some examples."""
    work = WORKS[name]
    epochs = work.epochs if amount == "whole" else 1
    rows = [0, 0]

    def examples() -> list[list[Any]]:
        found = read(work, folder, amount)
        rows[:] = map(len, found)
        return found

    whole = amount == "whole"
    with quietly():
        if side == "ours":
            found = run_bertkit(work, examples, epochs, seed, whole=whole)
        else:
            found = run_trainer(work, examples, epochs, seed, WAYS[side], whole=whole)
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
    if amount != "quick":
        summary = "  ".join(f"{score} {run.scores[score]:.4f}" for score in work.scores)
        print(
            f"{name}, seed {seed}, {side}: training {run.train:.1f} s, "
            f"prediction {run.predict:.1f} s, {summary}",
            flush=True,
        )
    return run


def run_bertkit(
    work: Work, examples: Callable[[], list[list[Any]]], epochs: int, seed: int, *, whole: bool
) -> Measured:
    """Fine-tune with bertkit's defaults, then predict with the saved model."""
    settings = Finetune(
        epochs=epochs,
        batch_size=work.batch_size,
        learning_rate=work.learning_rate,
        max_length=work.length,
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
        record = json.loads((out / SCORES).read_text(encoding="utf-8"))
        answer = answering(out, work.task, precision="auto", device="cpu")
    policy = policy_of_files(answer.task)
    answer.answers(dev[:WARM], long=policy)
    start = time.perf_counter()
    answers = answer.answers(dev, long=policy)
    predicted = time.perf_counter() - start
    answered = answer.task.score(answers, dev)
    last = record["epochs"][-1] if whole else answered
    return Measured(trained, predicted, 1.0, 1.0, last, answered)  # bertkit computes no padding.


def run_trainer(
    work: Work,
    examples: Callable[[], list[list[Any]]],
    epochs: int,
    seed: int,
    way: Way,
    *,
    whole: bool,
) -> Measured:
    """Run `Trainer.train`, then `Trainer.predict` with the same model."""
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

        def build_trainer(**arguments: Any) -> Any:
            trainer = transformers.Trainer(
                model=model,
                args=transformers.TrainingArguments(**shared, **arguments),
                data_collator=collator,
                processing_class=tokenizer,
                train_dataset=Rows(side.rows(train, learn=True))
                if "num_train_epochs" in arguments
                else None,
            )
            trainer.remove_callback(transformers.PrinterCallback)
            return trainer

        learner = build_trainer(
            num_train_epochs=epochs,
            per_device_train_batch_size=work.batch_size,
            learning_rate=work.learning_rate,
            **way.arguments,
        )
        learner.train()
        learner.save_model(folder)
        train_fill = collator.fill()
        # A Trainer that groups by length also predicts in that order.
        predictor = build_trainer(**way.predict)

        def predict(queries: list[Any]) -> list[Any]:
            rows = side.rows(queries, learn=False)
            order = list(range(len(rows)))
            if way.by_length:
                order.sort(key=lambda index: -len(rows[index]["input_ids"]))
            found = predictor.predict(Rows([rows[index] for index in order])).predictions
            return side.answers(unsort(found, order), queries)

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


def unsort(found: Any, order: Sequence[int]) -> Any:
    """Restore the original order of predictions."""
    if isinstance(found, tuple):
        return tuple(unsort(part, order) for part in found)
    restored = found.copy()
    restored[order] = found
    return restored


# ---- Tasks


@dataclass(frozen=True)
class Work:
    """Task to measure. `rows` contains the number of examples to use of each file."""

    task: str
    peer: type[Peer]
    files: tuple[str, str]
    epochs: int
    scores: tuple[str, ...]
    """Scores, of which the first is compared."""
    rows: tuple[int | None, int | None] = (None, None)
    length: int = 512
    """Maximum sequence length in tokens."""
    batch_size: int = 32
    learning_rate: float = 5e-5
    timed: tuple[int, int] = (640, 200)
    """Number of examples of each file with --speed."""


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
        "classify", Labels, ("mrpc/train.tsv", "mrpc/dev.tsv"), epochs=3, scores=("accuracy", "f1")
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


# ---- Log and rows


def read_log(path: Path) -> list[Run]:
    """Return the runs of a log that were measured on this machine with these versions."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = [msgspec.json.decode(line, type=Run) for line in lines]
    return [run for run in runs if kept.is_comparable(run.machine, run.versions)]


def line(run: Run) -> str:
    return msgspec.json.encode(run).decode() + "\n"


def pairs(runs: Sequence[Run], name: str, side: Side) -> list[tuple[Run, Run]]:
    """Return the runs of bertkit and a baseline on a task, for each seed that both have."""
    sides = {(r.seed, r.side): r for r in runs if r.task == name}
    return [
        (sides[seed, "ours"], sides[seed, side])
        for seed in sorted({seed for seed, _ in sides})
        if {(seed, "ours"), (seed, side)} <= sides.keys()
    ]


def times(runs: Sequence[tuple[Run, Run]], phase: str) -> list[float]:
    """Return the median seconds of bertkit and the baseline; `phase` is train or predict."""
    return [median(getattr(run, phase) for run in side) for side in zip(*runs, strict=True)]


def rows_of(runs: Sequence[Run], *, speed: bool) -> list[kept.Row]:
    """Return rows with the median times and the mean scores, per task and baseline."""
    found = []
    for name, work in WORKS.items():
        for side, way in WAYS.items():
            both = pairs(runs, name, side)
            if not both:
                continue
            run, other = both[0]
            part = f" {run.train_rows:,} rows" if speed else ""
            dev_rows = f" {run.dev_rows:,} rows" if speed else " dev"
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
                    setups=(
                        kept.Setup(f"{run.precision}, {batch}{scored}", run.train_fill),
                        kept.Setup(f"{way.settings}, {batch}", other.train_fill),
                    ),
                )
            )
            order = "sorted by length, 32 a batch" if way.by_length else "in order, 8 a batch"
            found.append(
                kept.row(
                    f"{name}, answering{dev_rows}",
                    *times(both, "predict"),
                    peer_name=way.name,
                    unit="s",
                    target=way.prediction,
                    better="lower",
                    setups=(
                        kept.Setup(run.precision, run.predict_fill),
                        kept.Setup(f"{other.precision}, {order}", other.predict_fill),
                    ),
                )
            )
            if not speed:
                found += scores_of(name, both, way)
    return found


def scores_of(name: str, both: Sequence[tuple[Run, Run]], way: Way) -> list[kept.Row]:
    """Return the row of a task's first score. Empty if the baseline's score is 0."""
    score = WORKS[name].scores[0]
    means, texts = zip(*(over_seeds(side, score) for side in zip(*both, strict=True)), strict=True)
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
            setups=(
                kept.Setup(f"{both[0][0].precision}, seeds: {len(both)}, {texts[0]}"),
                kept.Setup(f"{way.settings}, seeds: {len(both)}, {texts[1]}"),
            ),
        )
    ]


def over_seeds(side: Sequence[Run], score: str) -> tuple[float, str]:
    """Return the mean of a score, and a text with its standard deviation."""
    values = [run.scores[score] for run in side]
    if len(values) == 1:
        return values[0], f"{values[0]:.4f}"
    return mean(values), f"{mean(values):.4f} ± {stdev(values):.4f}"


def markdown(runs: Sequence[Run]) -> str:
    """Return the results as a Markdown table."""
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
            for phase in ("train", "predict"):
                a, b = times(both, phase)
                cells += [f"{a:.1f}, {b:.1f}", f"{b / a:.1f} ×"]
            lines.append(f"| {' | '.join([*cells, way.name])} |")
    return "\n".join(lines)
