"""Commands that learn: their options are the settings of a recipe or task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cyclopts import App

from bertkit.commands.command import Own, command
from bertkit.config import Count, Seed
from bertkit.console import print_json, say
from bertkit.models.layers import read_head
from bertkit.nn.precision import Precision
from bertkit.objectives.distill import Terms
from bertkit.recipes import augment as augmenting
from bertkit.recipes import compare as comparing
from bertkit.recipes import distill as distilling
from bertkit.recipes import finetune as tuning
from bertkit.recipes import probe as probing
from bertkit.recipes import prune as pruning
from bertkit.recipes import words as wording
from bertkit.recipes.vectors import train_vectors
from bertkit.tasks import TASKS, Task, find
from bertkit.tasks.task import Reading
from bertkit.training.skipgram import Skipgram

FILES: Own = {
    "model": (str, "A model folder or hub id."),
    "train": (Path, "Labelled examples to learn from."),
    "dev": (Path, "The same, to choose the best epoch by and to score."),
    "out": (Path, "The folder of what is made; it must not exist yet."),
}


def know_task(name: str) -> None:
    """Make `bertkit finetune NAME` a command. Raises: ConfigError for a name without a task."""
    if name not in finetune:
        finetune.command(_finetune(find(name)), name=name)


def _finetune(task: type[Task[Any, Any]]) -> Any:
    def call(*, seeds: int, resume: bool, **rest: Any) -> None:
        if seeds == 1:
            print(json.dumps(tuning.finetune(task, resume=resume, **rest)))
        else:
            print(json.dumps(tuning.finetune_seeds(seeds, task, resume=resume, **rest)))

    own = {
        **FILES,
        "seeds": (Count, "Run as many seeds, and report mean and standard deviation.", 1),
        "resume": (bool, "Go on with a run that was stopped.", False),
    }
    meaning = (task.__doc__ or task.name).split("\n\n")[0]
    return command(
        call, meaning, own, settings=tuning.Finetune, options=task.Options, reading=Reading
    )


finetune = App(name="finetune", help="Fine-tune a model on labelled data, for one of these tasks.")
for _name in TASKS:
    know_task(_name)


def _distill(**rest: Any) -> None:
    print(json.dumps(distilling.distill(**rest)))


distill = command(
    _distill,
    "Teach a small model what a fine-tuned one does; prints JSON.",
    {
        "teacher": (str, "A fine-tuned model folder; the task is its own."),
        **{name: FILES[name] for name in ("train", "dev", "out")},
        "student": (str | None, "A model folder or hub id with the teacher's vocabulary.", None),
        "layers": (Count | None, "Instead: as many layers of the teacher, evenly taken.", None),
        "follow": (
            list[int],
            "The teacher's layer that each of the student's follows, from 1; once for each.",
            [],
        ),
        "task": (str | None, "The teacher's task, where it is module:Class.", None),
        "seeds": (Count, "Run as many seeds, and report mean and standard deviation.", 1),
        "resume": (bool, "Go on with a run that was stopped.", False),
    },
    settings=tuning.Finetune,
    terms=Terms,
    reading=Reading,
)


def _augment(data: Path, /, **rest: Any) -> None:
    print(json.dumps(augmenting.augment(data, **rest)))


augment = command(
    _augment,
    "More labelled texts from those there are, for a student to learn from; prints JSON.",
    {
        "model": (str, "A model with a masked-LM head, which says what could stand in a place."),
        "out": (Path, "The .jsonl file to be made."),
        "vectors": (Path | None, "Word vectors, for words that the model has in pieces.", None),
        "copies": (Count, "Copies of each row, beside itself.", 10),
        "share": (float, "How likely a word is replaced in a copy.", 0.4),
        "candidates": (Count, "How many of the likeliest words one is drawn from.", 15),
        "seed": (Seed, "Of the draws.", 0),
    },
    positional={"data": (Path, "Labelled texts or pairs.")},
    reading=Reading,
)


def _prune(model: str, /, *, head: Sequence[str], layer: Sequence[int], **rest: Any) -> None:
    heads = [read_head(name) for name in head]
    print(json.dumps(pruning.prune(model, heads=heads, layers=layer, **rest)))


prune = command(
    _prune,
    "Take heads or layers from a fine-tuned model, and see what that costs; prints JSON.",
    {
        "dev": (Path, "Labelled examples, to score before and after."),
        "out": FILES["out"],
        "data": (Path | None, "Other labelled examples, to weigh heads by; with --count.", None),
        "count": (Count | None, "Take as many heads: those that matter least.", None),
        "head": (list[str], "Take this head instead, as LAYER.HEAD from 1; once for each.", []),
        "layer": (list[int], "Keep this layer instead, and no other, from 1; once for each.", []),
        "task": (str | None, "The model's task, where it is module:Class.", None),
    },
    positional={"model": FILES["model"]},
    reading=Reading,
)


def _vectors(text: list[Path], /, *, out: Path, settings: Skipgram) -> None:
    found = train_vectors(text, out=out, settings=settings)
    say(f"{out}: {len(found):,} words × {found.table.shape[1]}")


vectors = command(
    _vectors,
    "Learn static word vectors from text (skip-gram), in word2vec's text format.",
    {"out": (Path, "The file to be made: .txt, or .txt.gz.")},
    positional={"text": (list[Path], "Files or folders of .txt or .jsonl, also .gz.")},
    settings=Skipgram,
)


def _probe(*, combination: list[str] | None, **rest: Any) -> None:
    print(json.dumps(probing.probe(combinations=combination, **rest)))


probe = command(
    _probe,
    "Which layers of a frozen model know what tagging words needs; prints JSON.",
    {
        **FILES,
        "combination": (
            list[str] | None,
            "embeddings, a layer (3, or -1 for the last), or sum:, mix: or concat: before -4 (the "
            "last four) or all; once for each. By default those of the BERT paper.",
            None,
        ),
    },
    settings=probing.Probe,
    reading=Reading,
)


def _compare(**rest: Any) -> None:
    print(json.dumps(comparing.compare(**rest)))


compare = command(
    _compare,
    "Labels from random weights, word vectors and pretraining, side by side; prints JSON.",
    {**FILES, "vectors": (Path, "Word vectors: GloVe or word2vec text, also .gz.")},
    settings=comparing.Compare,
    reading=Reading,
)


def _words(model: str, file: Path, /, **rest: Any) -> None:
    print_json(wording.evaluate_words(model, file, **rest))


words = command(
    _words,
    "What every layer of a model knows of words, as it is; prints JSON.",
    {
        "train": (
            Path | None,
            "Rows in context to choose the cosine by that tells them apart.",
            None,
        ),
        "precision": (Precision, "Of the numbers the model computes with.", "fp32"),
    },
    positional={
        "model": FILES["model"],
        "file": (
            Path,
            "Two words and a score a line (WordSim-353), or .jsonl rows {word, sentence1, "
            "sentence2, label} (WiC), or WiC's own .data.txt.",
        ),
    },
)
