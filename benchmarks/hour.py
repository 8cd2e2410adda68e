"""What an hour buys downstream: ten scores of ours and of tuned transformers after equal time.

Both learn masked words from the speedrun's corpus for an hour, at BERT-mini's size and at the same
time, each with half of the cores, so that what else the machine does hits both: H1 of `speedrun`,
and `bertkit-mini`, the run file that comes with bertkit. Steps are set before, by how many tokens
each learns from in a minute beside the other.

Then bertkit's code scores both folders in the same way on five tasks: SST-2, TREC and SICK
(entailment) by accuracy, CoLA by Matthews' correlation, CoNLL-2003 by F1. Each is scored twice: by
a logistic regression on the states of the last layer but one, which stay as they are, and
fine-tuned. A text's features are the mean of its tokens' states, a pair's |u - v| and u · v of both
(Conneau & Kiela 2018), a word's the state of its first piece. Rows that choose the epoch of
fine-tuning are of train; none of those that are scored chose anything.

Needs BERTKIT_DATA. Folders are kept in `runs/speedrun`, scores in `hour.jsonl` beside the results.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import kept
from benchmarks.few import trec
from benchmarks.finetune import data_folder, numbers
from benchmarks.gpt import spread
from benchmarks.harness import Options, once
from benchmarks.speedrun import (
    CONFIG,
    LENGTH,
    OURS,
    PEERS,
    PLACE,
    corpus,
    exam,
    learned_by_ours,
    learned_by_peer,
    loss_of,
)
from bertkit import metrics
from bertkit.checkpoint.folder import load
from bertkit.config import read_toml
from bertkit.console import quietly
from bertkit.data.corpus import Corpus
from bertkit.data.schemes import spans
from bertkit.data.tags import TaggedText
from bertkit.models.features import spread_of
from bertkit.objectives.contrastive import fit_logistic
from bertkit.pipelines.frozen import FrozenEncoder
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.storage import write_text
from bertkit.tasks.classify import Classify, Example
from bertkit.tasks.tag import Options as TagOptions
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import Feature, Reading
from bertkit.text.tokenizer import Tokenizer

MINUTES = 60
PEER = "H1"
ROWS, CHOOSING, SCORED = 4_000, 500, 2_000
"""Rows to learn from, to choose the epoch by, and to be scored, at most."""
TUNING = Finetune(epochs=3, learning_rate=3e-4, length=LENGTH, device="cpu")
ALIKE = 3.0
"""Points by which ours is to be ahead."""


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log: what one side's folder came to with one seed of fine-tuning."""

    who: str
    seed: int
    tokens: int
    minutes: float
    loss: float
    """Of masked words, on held-out samples by which nothing was chosen."""
    frozen: dict[str, float]
    tuned: dict[str, float]
    date: str
    machine: kept.Machine
    versions: dict[str, str]


@dataclass(frozen=True)
class Task:
    """Rows to learn from, to choose by, to be scored, and the score that counts."""

    learn: list[Any]
    choose: list[Any]
    score: list[Any]
    metric: str


def main(options: Options) -> None:
    data, quick = data_folder(), options.quick
    log = kept.log_of("hour")
    if options.fresh and not quick and log.exists():
        write_text(log, "")
    lines = [] if quick else kept.lines(log, Scored)
    kept.refuse_others(log, [(line.machine, line.versions) for line in lines])
    text = corpus()
    with halves() as (left, right):
        sides = {OURS: left, PEER: right}

        def both(call: Callable[..., Any], *given: Any) -> dict[str, Any]:
            asked = {who: run(call, who, *given) for who, run in sides.items()}
            return {who: one.result() for who, one in asked.items()}

        with TemporaryDirectory() as place:
            root = Path(place) if quick else PLACE
            folders = {who: root / f"hour-{who}" for who in sides}
            if not all(folder.exists() for folder in folders.values()):
                rates = both(rate, text.folder, 1 if quick else 8)
                for who, each in rates.items():
                    print(f"{who}: {each:,.0f} tokens/s", flush=True)
                seconds = 1 if quick else 60 * MINUTES
                asked = {
                    who: run(learned, who, text.folder, root, round(rates[who] * seconds))
                    for who, run in sides.items()
                }
                for one in asked.values():
                    one.result()
            for seed in numbers(options.seeds or ("0" if quick else "0,1,2")):
                if all((who, seed) in {(line.who, line.seed) for line in lines} for who in sides):
                    continue
                for line in both(scored, text.folder, root, data, seed, quick).values():
                    print(told(line), flush=True)
                    lines.append(line)
                    if not quick:
                        kept.append(log, msgspec.json.encode(line).decode() + "\n")
    book = options.book("hour")
    book.add(*compared(lines))
    book.close()


def told(line: Scored) -> str:
    each = "  ".join(
        f"{name} {100 * line.frozen[name]:.1f} / {100 * score:.1f}"
        for name, score in line.tuned.items()
    )
    return f"{line.who}, {line.minutes:.1f} minutes, loss {line.loss:.3f}, seed {line.seed}: {each}"


def points(line: Scored) -> float:
    """The mean of ten scores, of 100."""
    return 100 * mean([*line.frozen.values(), *line.tuned.values()])


def compared(lines: Sequence[Scored]) -> list[kept.Row]:
    ours, theirs = ([line for line in lines if line.who == who] for who in (OURS, PEER))
    means = [mean(map(points, side)) for side in (ours, theirs)]

    def how(side: Sequence[Scored]) -> kept.How:
        over = f" ± {stdev(map(points, side)):.2f}" if len(side) > 1 else ""
        return kept.How(
            f"{side[0].tokens:,} tokens in {side[0].minutes:.1f} minutes, loss {side[0].loss:.3f}; "
            f"{mean(map(points, side)):.2f}{over} over {len(side)} seeds of fine-tuning"
        )

    return [
        kept.row(
            "BERT-mini's size, mean of ten scores after an hour",
            *means,
            peer_name="transformers, tuned (H1)",
            unit="points",
            target=(means[1] + ALIKE) / means[1],
            better="higher",
            how=(how(ours), how(theirs)),
        )
    ]


# ---- two halves of a machine


@contextmanager
def halves() -> Iterator[list[Callable[..., Any]]]:
    """Two ways to call in a process of its own, each on half of the cores."""
    all_cores = sorted(os.sched_getaffinity(0))
    middle = len(all_cores) // 2
    with ExitStack() as stack:
        runs = []
        for part in (all_cores[:middle], all_cores[middle:]):
            pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
            os.sched_setaffinity(0, part)  # a process has the cores of who starts it
            stack.enter_context(pool).submit(os.getpid).result()
            runs.append(pool.submit)
        os.sched_setaffinity(0, all_cores)
        yield runs


def rate(who: str, folder: Path, steps: int) -> float:
    """Tokens/s beside the other side, of so many steps of the peer, and ten times as many of ours,
    which take about as long."""
    with TemporaryDirectory() as place:
        steps *= 1 if who == PEER else 10
        return _learned(who, Corpus.open(folder), Path(place) / "out", steps)


def learned(who: str, folder: Path, root: Path, tokens: int) -> None:
    """A folder of what one side learned from so many tokens, and the minutes that it took."""
    size = PEERS[PEER].batch if who == PEER else read_toml(CONFIG)["train"]["batch_size"]
    steps = max(4, round(tokens / size / LENGTH))

    def made(out: Path) -> None:
        began = time.perf_counter()
        with TemporaryDirectory() as place:
            _learned(who, Corpus.open(folder), Path(place) / "out", steps)
            minutes = (time.perf_counter() - began) / 60
            shutil.copytree(Path(place) / "out", out)
        write_text(out / "took.txt", f"{minutes} {steps * size * LENGTH}")

    once(root / f"hour-{who}", made)


def _learned(who: str, text: Corpus, out: Path, steps: int) -> float:
    if who == PEER:
        return learned_by_peer(text, out, PEERS[PEER], steps=steps)
    return learned_by_ours(text, out, steps=steps)


# ---- the scores


def scored(who: str, folder: Path, root: Path, data: Path, seed: int, quick: bool) -> Scored:
    """Both scores of each task."""
    model = root / f"hour-{who}"
    minutes, tokens = (model / "took.txt").read_text().split()
    frozen, tuned = {}, {}
    with quietly():
        for name, task in tasks(data, quick).items():
            frozen[name] = by_regression(model, task)
            tuned[name] = by_tuning(model, task, seed)
        loss = loss_of(load(model).model, exam(Corpus.open(folder), 1))
    return Scored(
        who=who, seed=seed, tokens=int(tokens), minutes=float(minutes), loss=loss, frozen=frozen,
        tuned=tuned, date=kept.now(), machine=kept.machine(), versions=kept.versions(),
    )  # fmt: skip


def tasks(data: Path, quick: bool) -> dict[str, Task]:
    """By name."""

    def rows(name: str, *files: str, **columns: Any) -> list[Any]:
        kind = Tag if name == "conll2003" else Classify
        read = [kind.read(data / name / f, Reading(**columns), labelled=True)[0] for f in files]
        return [one for part in read for one in part]

    def parted(train: Sequence[Any], scored: Sequence[Any], metric: str) -> Task:
        share = 100 if quick else 1
        every = (ROWS + CHOOSING) // CHOOSING
        drawn = spread(train, (ROWS + CHOOSING) // share)
        learn = [one for place, one in enumerate(drawn) if place % every]
        return Task(learn, list(drawn[::every]), list(spread(scored, SCORED // share)), metric)

    cola = {"text": "4", "label": "2", "header": False}
    sick = {"text": "sentence_A", "pair": "sentence_B", "label": "entailment_judgment"}
    read = {
        "SST-2": (rows("sst2", "train.tsv"), rows("sst2", "dev.tsv")),
        "CoLA": (
            rows("cola", "in_domain_train.tsv", **cola),
            rows("cola", "in_domain_dev.tsv", "out_of_domain_dev.tsv", **cola),
        ),
        "CoNLL-2003": (rows("conll2003", "train.txt"), rows("conll2003", "valid.txt")),
        "SICK": (rows("sick", "SICK_train.txt", **sick), rows("sick", "SICK_trial.txt", **sick)),
        "TREC": trec(data),
    }
    metrics = {"CoLA": "matthews", "CoNLL-2003": "f1"}
    return {name: parted(*parts, metrics.get(name, "accuracy")) for name, parts in read.items()}


def by_tuning(model: Path, task: Task, seed: int) -> float:
    """Of the fine-tuned model."""
    kind = "tag" if isinstance(task.learn[0], TaggedText) else "classify"
    with TemporaryDirectory() as place:
        out = Path(place) / "out"
        settings = msgspec.structs.replace(TUNING, seed=seed)
        finetune(kind, model, train=task.learn, dev=task.choose, out=out, settings=settings)
        return float(evaluate(str(out), task.score)[task.metric])


def by_regression(model: Path, task: Task) -> float:
    """Of a logistic regression on states that stay as they are."""
    loaded = load(model, heads=())
    frozen = FrozenEncoder(loaded, "fp32")
    layer = frozen.layers - 1
    if isinstance(task.learn[0], TaggedText):
        tagger = Tag.from_examples(task.learn, TagOptions())
        parts = [frozen.features(tagger, rows, labelled=True) for rows in (task.learn, task.score)]
        states = [frozen.encode(part, [layer])[0].float() for part in parts]
        targets = torch.cat([torch.as_tensor(np.asarray(one.target)) for one in parts[0]])
        answered = answers(states, targets, len(tagger.labels))
        ends = np.cumsum([len(one.target) for one in parts[1]])[:-1]
        given, gold = (
            [[tagger.labels[n] for n in tags] for tags in side]
            for side in (np.split(answered, ends), [np.asarray(one.target) for one in parts[1]])
        )
        return metrics.entities([spans(tags) for tags in given], [spans(tags) for tags in gold])[
            "f1"
        ]
    names = sorted({str(one.label) for one in task.learn})
    vectors = [of_texts(frozen, loaded.tokenizer, rows, layer) for rows in (task.learn, task.score)]
    targets = torch.tensor([names.index(str(one.label)) for one in task.learn])
    found = answers(vectors, targets, len(names))
    right = np.array([names.index(str(one.label)) for one in task.score])
    if task.metric == "matthews":
        return float(np.corrcoef(found, right)[0, 1]) if len(set(found.tolist())) > 1 else 0.0
    return float((found == right).mean())


def answers(
    vectors: Sequence[torch.Tensor], targets: torch.Tensor, labels: int
) -> NDArray[np.int64]:
    """Of the second rows, by what the first ones taught; numbers count by their spread."""
    means, spreads = (one[0] for one in spread_of(vectors[0][None]))
    learn, asked = ((one - means) / spreads for one in vectors)
    weight, bias = fit_logistic(learn, targets, labels=labels)
    return np.asarray((asked.double() @ weight.T + bias).argmax(1))


def of_texts(
    frozen: FrozenEncoder, tokenizer: Tokenizer, rows: Sequence[Example], layer: int
) -> torch.Tensor:
    """The mean state of each text, of a pair |u - v| and u · v. Shapes: (S, D) or (S, 2 · D)."""

    def means(texts: Sequence[str]) -> torch.Tensor:
        read = tokenizer.encode_batch(texts, max_length=LENGTH, truncate="longest")
        features = [Feature(one, n, np.arange(len(one))) for n, one in enumerate(read)]
        states = frozen.encode(features, [layer])[0].float()
        return torch.stack([part.mean(0) for part in states.split([len(one) for one in read])])

    first = means([one.text for one in rows])
    if rows[0].pair is None:
        return first
    second = means([str(one.pair) for one in rows])
    return torch.cat([(first - second).abs(), first * second], 1)
