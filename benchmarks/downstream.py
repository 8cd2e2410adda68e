"""Ten scores of an encoder's folder, on five tasks: what its pretraining was worth.

SST-2, TREC and SICK (entailment) by accuracy, CoLA by Matthews' correlation, CoNLL-2003 by F1. Each
is scored twice: by a logistic regression on the states of the last layer but one, which stay as
they are, and fine-tuned, where the same score chooses the epoch. A text's features are the mean of
its tokens' states, a pair's |u - v| and u · v of both (Conneau & Kiela 2018), a word's the state of
its first piece. Rows that choose the epoch are of train; none of those that are scored chose
anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.few import trec
from benchmarks.gpt import spread
from bertkit import metrics
from bertkit.checkpoint.folder import load
from bertkit.data.schemes import spans
from bertkit.data.tags import TaggedText
from bertkit.models.features import spread_of
from bertkit.objectives.contrastive import fit_logistic
from bertkit.pipelines.frozen import FrozenEncoder
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.classify import Classify, Example
from bertkit.tasks.tag import Options as TagOptions
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import Feature, Reading
from bertkit.text.tokenizer import Tokenizer

ROWS, CHOOSING, SCORED = 4_000, 500, 2_000
"""Rows to learn from, to choose the epoch by, and to be scored, at most."""
LENGTH = 128
TUNING = Finetune(epochs=3, learning_rate=3e-4, length=LENGTH, device="cpu")


@dataclass(frozen=True)
class Task:
    """Rows to learn from, to choose by, to be scored, and the score that counts."""

    learn: list[Any]
    choose: list[Any]
    score: list[Any]
    metric: str


def scores(model: Path, data: Path, seed: int, *, quick: bool) -> dict[str, list[float]]:
    """Of each task the score with its states as they are, and fine-tuned."""
    return {
        name: [by_regression(model, task), by_tuning(model, task, seed)]
        for name, task in tasks(data, quick=quick).items()
    }


def tasks(data: Path, *, quick: bool) -> dict[str, Task]:
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
    others = {"CoLA": "matthews", "CoNLL-2003": "f1"}
    return {name: parted(*parts, others.get(name, "accuracy")) for name, parts in read.items()}


def by_tuning(model: Path, task: Task, seed: int) -> float:
    """Of the fine-tuned model."""
    kind = "tag" if isinstance(task.learn[0], TaggedText) else "classify"
    with TemporaryDirectory() as place:
        out = Path(place) / "out"
        settings = msgspec.structs.replace(TUNING, seed=seed, metric=task.metric)
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
        found = metrics.entities(list(map(spans, given)), list(map(spans, gold)))
        return float(found[task.metric])
    names = sorted({str(one.label) for one in task.learn})
    vectors = [of_texts(frozen, loaded.tokenizer, rows, layer) for rows in (task.learn, task.score)]
    targets = torch.tensor([names.index(str(one.label)) for one in task.learn])
    said = [names[n] for n in answers(vectors, targets, len(names))]
    return metrics.classification(said, [str(one.label) for one in task.score], names)[task.metric]


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
