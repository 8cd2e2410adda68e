"""Fine-tuning MiniLM: bertkit against transformers' `Trainer`, each with its defaults.

Five tasks on real data, which BERTKIT_DATA names the folder of. Both sides learn from the same
rows for as many epochs, 32 rows a step at a learning rate of 5e-5; from the small slice of squad,
16 windows a step at 3e-4, so that something is learned. The rest is each side's own: the peer
learns in fp32 with AdamW, a linear schedule without warm-up and batches padded to their longest
row.

What is timed favors the peer. Our training is the whole of `finetune`: it reads files, loads the
model, tokenizes, learns, scores dev after each epoch and saves the best. The peer's is its
tokenizing and `Trainer.train`, which neither scores nor saves.

Prediction goes from the texts of dev to answers, tokenizing included, with the model loaded and
warm: ours at precision auto, the peer's by `Trainer.predict` at its default of 8 rows a batch.

Scores are those after the last epoch, which is what the peer ends with; bertkit would keep the
best epoch. Each run is a line of `results/finetune.jsonl`, and the command goes on behind the last;
the runs of a task are all of one machine.
"""

from __future__ import annotations

import gc
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks import harness
from benchmarks.embed import minilm
from benchmarks.text import stsb
from bertkit import metrics
from bertkit.console import quietly
from bertkit.data.tags import spans
from bertkit.pipelines import answering
from bertkit.recipes.finetune import SCORES, Finetune, finetune, read_examples
from bertkit.storage import write_text
from bertkit.tasks import find

LOG = harness.RESULTS / "finetune.jsonl"
PEER = "transformers Trainer, fp32"
TRAINING, PREDICTION, SCORE = 4.0, 3.0, 0.99
"""Targets: how many times faster, and the least share of the peer's score."""

FEW = 64
"""Rows of a quick run, and of the unmeasured one before each task."""
WARM = 32
"""Rows that are answered before those whose time is taken."""

OVERLAP, BEST, ANSWER_TOKENS = 128, 20, 30
"""Of squad: tokens that windows share, and which answers are weighed; the defaults of both."""

Side = Literal["ours", "peer"]
SIDES: tuple[Side, Side] = ("ours", "peer")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log: one side's run of a task with one seed. Times are in seconds."""

    task: str
    seed: int
    side: Side
    train: float
    predict: float
    scores: dict[str, float]
    """On dev, after the last epoch."""
    answered: dict[str, float]
    """Of the answers whose time was taken: ours are of the best epoch, at precision auto."""
    train_rows: int
    dev_rows: int
    epochs: int
    date: str
    machine: harness.Machine
    threads: int
    versions: dict[str, str]


def main(
    *, quick: bool = False, tasks: str | None = None, seeds: str | None = None, fresh: bool = False
) -> None:
    folder = data_folder()
    names = chosen(tasks, folder)
    wanted = numbers(seeds or ("0" if quick else "0,1,2"))
    turns: list[tuple[int, Side]] = [(seed, side) for seed in wanted for side in SIDES]
    if quick:
        with processes() as run:
            runs = [run(name, *turn, folder, quick=True) for name in names for turn in turns]
        harness.show("finetune, quick", rows_of(runs))
        print(markdown(runs))
        return
    runs = read_log(LOG)
    if fresh:
        runs = [run for run in runs if run.task not in names or run.seed not in wanted]
    refuse_others([run for run in runs if run.task in names])
    if fresh:
        write_text(LOG, "".join(map(line, runs)))
    with processes() as run:
        for name in names:
            done = {(r.seed, r.side) for r in runs if r.task == name}
            todo = [turn for turn in turns if turn not in done]
            for side in SIDES if todo else ():
                run(name, 0, side, folder, quick=True)
            for turn in todo:
                runs.append(run(name, *turn, folder))
                with LOG.open("a", encoding="utf-8") as log:
                    log.write(line(runs[-1]))
            harness.write(f"finetune-{name}", rows_of([r for r in runs if r.task == name]))
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


def read(work: Work, folder: Path, *, quick: bool) -> list[list[Any]]:
    """The examples of train and of dev."""
    found = []
    for file, wanted in zip(work.files, work.rows, strict=True):
        if work.peer is Numbers:
            rows = stsb(folder / file)
        else:
            rows = read_examples(find(work.task), folder / file)
        found.append(rows[: FEW if quick else wanted])
    return found


def quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


# ---- the two sides


class Measured(NamedTuple):
    """What one side's run yields, times in seconds."""

    train: float
    predict: float
    scores: dict[str, float]
    answered: dict[str, float]


@contextmanager
def processes() -> Iterator[Callable[..., Run]]:
    """`measure`, in a process for each side: what one sets, such as how memory is held, is not
    to help the other."""
    with ExitStack() as stack:
        pools = {
            side: stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            for side in SIDES
        }

        def run(name: str, seed: int, side: Side, *rest: Any, **options: Any) -> Run:
            return pools[side].submit(measure, name, seed, side, *rest, **options).result()

        yield run


def measure(name: str, seed: int, side: Side, folder: Path, *, quick: bool = False) -> Run:
    """One side's run of a task, on its first rows and for one epoch if `quick`."""
    work = WORKS[name]
    epochs = 1 if quick else work.epochs
    rows = [0, 0]

    def examples() -> list[list[Any]]:
        found = read(work, folder, quick=quick)
        rows[:] = map(len, found)
        return found

    with quietly():
        found = (ours if side == "ours" else peers)(work, examples, epochs, seed)
    gc.collect()
    run = Run(
        task=name,
        seed=seed,
        side=side,
        **found._asdict(),
        train_rows=rows[0],
        dev_rows=rows[1],
        epochs=epochs,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        machine=harness.machine(),
        threads=torch.get_num_threads(),
        versions=versions(),
    )
    if not quick:
        said = "  ".join(f"{score} {run.scores[score]:.4f}" for score in work.scores)
        print(
            f"{name}, seed {seed}, {side}: training {run.train:.1f} s, "
            f"prediction {run.predict:.1f} s, {said}",
            flush=True,
        )
    return run


def ours(work: Work, examples: Callable[[], list[list[Any]]], epochs: int, seed: int) -> Measured:
    """`finetune`, then the answers of the folder it wrote."""
    settings = Finetune(
        epochs=epochs,
        batch_size=work.batch_size,
        learning_rate=work.learning_rate,
        length=work.length,
        seed=seed,
        device="cpu",  # where the peer is told to stay
    )
    with TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        start = time.perf_counter()
        train, dev = examples()
        finetune(work.task, minilm(), train=train, dev=dev, out=out, settings=settings)
        trained = time.perf_counter() - start
        kept = json.loads((out / SCORES).read_text(encoding="utf-8"))
        answer = answering(out, work.task, precision="auto")
    policy = answer.task.long_of_files()
    answer.answers(dev[:WARM], long=policy)
    start = time.perf_counter()
    answers = answer.answers(dev, long=policy)
    predicted = time.perf_counter() - start
    last = kept["epochs"][-1]
    return Measured(trained, predicted, last, answer.task.score(answers, dev))


def peers(work: Work, examples: Callable[[], list[list[Any]]], epochs: int, seed: int) -> Measured:
    """`Trainer.train`, then `Trainer.predict` with the same model."""
    import transformers

    quiet_transformers()
    train, dev = examples()
    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(minilm()))
    side = work.peer(tokenizer, train, work.length)
    model = getattr(transformers, side.model).from_pretrained(str(minilm()), **side.outputs())
    with TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=work.batch_size,
            learning_rate=work.learning_rate,
            seed=seed,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        start = time.perf_counter()
        trainer = transformers.Trainer(
            model=model,
            args=arguments,
            data_collator=getattr(transformers, side.collator)(tokenizer),
            train_dataset=Rows(side.rows(train, learn=True)),
            processing_class=tokenizer,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        trained = time.perf_counter() - start

        def predict(asked: list[Any]) -> list[Any]:
            rows = side.rows(asked, learn=False)
            return side.answers(trainer.predict(Rows(rows)).predictions, asked)

        predict(dev[:WARM])
        start = time.perf_counter()
        answers = predict(dev)
        predicted = time.perf_counter() - start
    scores = side.score(answers, dev)
    return Measured(trained, predicted, scores, scores)


# ---- the peer, task by task


class Rows(Dataset[dict[str, Any]]):
    """What the model reads, one dict a row."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.rows[place]


class Peer(ABC):
    """How a task is done with transformers, written after its example scripts."""

    model: str
    collator = "DataCollatorWithPadding"

    def __init__(self, tokenizer: Any, train: Sequence[Any], length: int) -> None:
        self.tokenizer, self.length, self.labels = tokenizer, length, self.labels_of(train)
        self.index = {label: place for place, label in enumerate(self.labels)}

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        """The names of the model's outputs."""
        return sorted({example.label for example in train})

    def outputs(self) -> dict[str, int]:
        return {"num_labels": len(self.labels)}

    @abstractmethod
    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        """What the model reads, tokenized, and with `learn` its targets."""

    @abstractmethod
    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        """An answer for each example, from the logits of what `rows` gave last."""

    @abstractmethod
    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """By bertkit's metrics, so that the same answers score the same."""


class Labels(Peer):
    """A label for a text or a pair, as run_glue does it."""

    model = "AutoModelForSequenceClassification"

    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        pairs = [example.pair for example in examples]
        found = self.tokenizer(
            [example.text for example in examples],
            None if pairs[0] is None else pairs,
            truncation=True,
            max_length=self.length,
        )
        rows = by_row(found)
        for row, example in zip(rows, examples, strict=True) if learn else ():
            row["labels"] = self.target(example.label)
        return rows

    def target(self, label: str) -> float:
        return self.index[label]

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        return [self.labels[place] for place in predictions.argmax(-1).tolist()]

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return metrics.classification(
            answers, [example.label for example in examples], sorted(self.labels)
        )


class Numbers(Labels):
    """A number for a pair: one output, which transformers takes for a regression."""

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        return ["score"]

    def target(self, label: str) -> float:
        return float(label)

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        found: list[Any] = predictions[:, 0].tolist()
        return found

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return metrics.regression(answers, [float(example.label) for example in examples])


class Tags(Peer):
    """A tag for each word, at its first piece, as run_ner does it."""

    model = "AutoModelForTokenClassification"
    collator = "DataCollatorForTokenClassification"
    firsts: Sequence[dict[int, int]] = ()
    """The place of each word's first piece, for each row."""

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        return sorted({tag for example in train for tag in example.tags})

    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        found = self.tokenizer(
            [example.words for example in examples],
            is_split_into_words=True,
            truncation=True,
            max_length=self.length,
        )
        rows, self.firsts = by_row(found), []
        for place, (row, example) in enumerate(zip(rows, examples, strict=True)):
            first: dict[int, int] = {}
            for token, word in enumerate(found.word_ids(place)):
                if word is not None:
                    first.setdefault(word, token)
            self.firsts.append(first)
            if learn:
                labels = [-100] * len(row["input_ids"])
                for word, token in first.items():
                    labels[token] = self.index[example.tags[word]]
                row["labels"] = labels
        return rows

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        best = predictions.argmax(-1)
        return [
            [
                self.labels[row[first[word]]] if word in first else "O"
                for word in range(len(example.places))
            ]
            for row, first, example in zip(best, self.firsts, examples, strict=True)
        ]

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Raises: AssertionError when seqeval finds another F1: then neither means anything."""
        from seqeval.metrics import f1_score  # type: ignore[import-untyped]

        wanted = [example.tags for example in examples]
        scores = metrics.entities([*map(spans, answers)], [*map(spans, wanted)])
        theirs = float(f1_score(wanted, answers))
        assert abs(scores["f1"] - theirs) < 1e-9, f"F1 {scores['f1']}, seqeval's {theirs}"
        return scores


class Spans(Peer):
    """Part of a context that answers a question, as run_qa does it.

    The least work that comes to its answers: nothing is padded beyond the batch, and neither
    probabilities nor files are made.
    """

    model = "AutoModelForQuestionAnswering"
    owner: Sequence[int] = ()
    """The example of each window."""
    places: Sequence[list[tuple[int, int] | None]] = ()
    """For each token of each window its characters in the context, None outside of it."""

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        return ["start", "end"]

    def rows(self, examples: Sequence[Any], *, learn: bool) -> list[dict[str, Any]]:
        found = self.tokenizer(
            [example.question.lstrip() for example in examples],
            [example.context for example in examples],
            truncation="only_second",
            max_length=self.length,
            stride=OVERLAP,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        self.owner = found.pop("overflow_to_sample_mapping")
        self.places = [
            [
                place if which == 1 else None
                for place, which in zip(places, found.sequence_ids(window), strict=True)
            ]
            for window, places in enumerate(found.pop("offset_mapping"))
        ]
        rows = by_row(found)
        for row, number, places in zip(rows, self.owner, self.places, strict=True) if learn else ():
            row["start_positions"], row["end_positions"] = covered(places, examples[number])
        return rows

    def answers(self, predictions: Any, examples: Sequence[Any]) -> list[Any]:
        best = [(-np.inf, "")] * len(examples)
        for start, end, number, places in zip(*predictions, self.owner, self.places, strict=True):
            context = examples[number].context
            for first in np.argsort(start)[-BEST:].tolist():
                for last in np.argsort(end)[-BEST:].tolist():
                    if not first <= last < min(first + ANSWER_TOKENS, len(places)):
                        continue
                    opens, closes = places[first], places[last]
                    score = start[first] + end[last]
                    if opens and closes and score > best[number][0]:
                        best[number] = (score, context[opens[0] : closes[1]])
        return [text for _, text in best]

    def score(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        return metrics.squad(answers, [[text for text, _ in e.answers] for e in examples])


def covered(places: Sequence[tuple[int, int] | None], example: Any) -> tuple[int, int]:
    """The first and last token of the first answer, or [CLS] where the window lacks some of it."""
    text, start = example.answers[0]
    end = start + len(text)
    shown = [(token, place) for token, place in enumerate(places) if place is not None]
    if shown[0][1][0] > start or shown[-1][1][1] < end:
        return 0, 0
    inside = [token for token, (opens, closes) in shown if opens < end and closes > start]
    return inside[0], inside[-1]


def by_row(found: Any) -> list[dict[str, Any]]:
    """A tokenizer's columns as rows."""
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


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


WORKS = {
    "sst2": Work(
        "classify",
        Labels,
        ("sst2/train.tsv", "sst2/dev.tsv"),
        epochs=1,
        scores=("accuracy",),
        rows=(10_000, None),
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
    ),
}


# ---- the log and what it says


def read_log(path: Path) -> list[Run]:
    if not path.exists():
        return []
    return [msgspec.json.decode(text, type=Run) for text in path.read_bytes().splitlines()]


def line(run: Run) -> str:
    return msgspec.json.encode(run).decode() + "\n"


def refuse_others(runs: Sequence[Run]) -> None:
    """Raises: SystemExit for runs that may not stand beside those to come."""
    here, installed = harness.machine(), versions()
    now = here.cpu, here.cores, here.gpu, torch.get_num_threads()
    for run in runs:
        there = run.machine
        kept = {name: installed.get(name) for name in run.versions}  # more may have come since
        if (there.cpu, there.cores, there.gpu, run.threads) != now or run.versions != kept:
            raise SystemExit(
                f"{LOG}: holds runs of another machine, of other versions or with other threads; "
                "start over with --fresh"
            )


def versions() -> dict[str, str]:
    return harness.versions() | {"accelerate": metadata.version("accelerate")}


def pairs(runs: Sequence[Run], name: str) -> list[tuple[Run, Run]]:
    """Ours and the peer's run of a task with each seed that both have."""
    sides = {(r.seed, r.side): r for r in runs if r.task == name}
    seeds = sorted({seed for seed, _ in sides})
    return [
        (sides[seed, "ours"], sides[seed, "peer"])
        for seed in seeds
        if {(seed, "ours"), (seed, "peer")} <= sides.keys()
    ]


def times(both: Sequence[tuple[Run, Run]], what: str) -> list[float]:
    """The median seconds of ours and of the peer; `what` is train or predict."""
    return [median(getattr(run, what) for run in side) for side in zip(*both, strict=True)]


def rows_of(runs: Sequence[Run]) -> list[harness.Row]:
    """Of each task the medians of both times, and the means of its first score."""
    found = []
    for name, work in WORKS.items():
        both = pairs(runs, name)
        if not both:
            continue
        for title, what, target in (
            ("training", "train", TRAINING),
            ("prediction", "predict", PREDICTION),
        ):
            found.append(
                harness.row(
                    f"{name}, {title}",
                    *times(both, what),
                    peer_name=PEER,
                    unit="s",
                    target=target,
                    better="lower",
                )
            )
        score = work.scores[0]
        means, said = zip(
            *(over_seeds(side, score) for side in zip(*both, strict=True)), strict=True
        )
        if means[1] == 0:  # a quick run may find nothing
            continue
        found.append(
            harness.row(
                f"{name}, {score} (seeds: {len(both)}): {said[0]}, the peer's {said[1]}",
                *means,
                peer_name=PEER,
                unit="",
                target=SCORE,
                better="higher",
            )
        )
    return found


def over_seeds(side: Sequence[Run], score: str) -> tuple[float, str]:
    """The mean of a score, and in words with its standard deviation."""
    values = [run.scores[score] for run in side]
    if len(values) == 1:
        return values[0], f"{values[0]:.4f}"
    return mean(values), f"{mean(values):.4f} ± {stdev(values):.4f}"


def markdown(runs: Sequence[Run]) -> str:
    """The same as a table for a page."""
    lines = [
        "| task | rows × epochs | score | bertkit | `Trainer` | training, s | ratio | "
        "prediction, s | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, work in WORKS.items():
        both = pairs(runs, name)
        if not both:
            continue
        run = both[0][0]
        cells = [name, f"{run.train_rows:,} × {run.epochs}", "<br>".join(work.scores)]
        for side in zip(*both, strict=True):
            cells.append("<br>".join(over_seeds(side, score)[1] for score in work.scores))
        for what in ("train", "predict"):
            a, b = times(both, what)
            cells += [f"{a:.1f}, {b:.1f}", f"{b / a:.1f} ×"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
