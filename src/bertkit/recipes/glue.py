"""Many tasks, one command, one table: fine-tune a model on GLUE, with the paper's scores beside."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from bertkit.config import Count, plain
from bertkit.console import say
from bertkit.errors import DataError
from bertkit.metrics import plus_minus, spread
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.runs import FORMATS
from bertkit.recipes.seeds import finetune_seeds
from bertkit.storage import check_out, write_json
from bertkit.tasks.classify import Classify
from bertkit.tasks.examples import Examples, take_examples
from bertkit.tasks.task import Reading

GLUE = "glue.json"


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE: its metric, and what BERT-base has on its test rows (Devlin et al. 2019,
    table 1)."""

    name: str
    metric: str
    paper: float
    reading: Reading | None = None
    """Of a .tsv file without a header line."""


TASKS = (
    GlueTask("CoLA", "matthews", 52.1, Reading(text_column="4", label_column="2", header=False)),
    GlueTask("SST-2", "accuracy", 93.5),
    GlueTask("MRPC", "f1", 88.9),
    GlueTask("STS-B", "spearman", 85.8),
    GlueTask("QQP", "f1", 71.2),
    GlueTask("MNLI", "accuracy", 84.6),
    GlueTask("QNLI", "accuracy", 90.5),
    GlueTask("RTE", "accuracy", 66.4),
)
KINDS = (".tsv", ".jsonl", ".csv", ".parquet")
OTHERS = re.compile("mismatched|out_of_domain|test")
"""Rows that are not dev's, though their file may be named so."""


def glue(
    model: str,
    data: Path,
    /,
    *,
    out: Path,
    seeds: Count = 1,
    resume: bool = False,
    settings: Finetune | None = None,
) -> str:
    """Fine-tune a model on each task of GLUE that is there, and put its scores beside BERT's.

    Scores are those of the best epoch on dev, which chose it; the paper's are of GLUE's test rows,
    which are not public. WNLI is left out, as in the paper.
    Raises: DataError where there is no task, or a file cannot be read, before work.

    Args:
        model: A model folder or hub id.
        data: A folder with a folder for each task, such as CoLA, with its train and dev files.
        out: The folder of what is made: a model for each task, and glue.json.
        seeds: Run as many seeds of each.
        resume: Go on with what is not finished.
    """
    settings = settings or Finetune()
    files = _files(data)
    check_out(out, resume=resume)
    rows = {task: take_examples(Classify, *both, _reading(task, both)) for task, both in files}
    told = []
    for task, (train, dev) in rows.items():
        began = time.monotonic()
        score = _score(task, model, train, dev, out / task.name, seeds, resume, settings)
        minutes = (time.monotonic() - began) / 60
        say(f"{task.name}: {task.metric} {plus_minus(score)}, in the paper {task.paper}")
        told.append((task, train, dev, score, minutes))
    record = {task.name: {"metric": task.metric, **score} for task, *_, score, _ in told}
    write_json(out / GLUE, {"model": model, "settings": plain(settings), "tasks": record})
    return FORMATS["markdown"](
        ["task", "metric", "train", "dev", "score on dev", "BERT-base, test", "minutes"],
        [
            [
                *(task.name, task.metric, f"{len(train.examples):,}", f"{len(dev.examples):,}"),
                *(plus_minus(score), f"{task.paper}", f"{minutes:.1f}"),
            ]
            for task, train, dev, score, minutes in told
        ],
    )


def _score(
    task: GlueTask,
    model: str,
    train: Examples,
    dev: Examples,
    out: Path,
    seeds: int,
    resume: bool,
    settings: Finetune,
) -> dict[str, Any]:
    """Mean, standard deviation and each, in percent, as the paper has them."""
    given: dict[str, Any] = {"train": train, "dev": dev, "out": out}
    given["resume"] = "auto" if resume else False
    given["settings"] = structs.replace(settings, metric=task.metric)
    if seeds == 1:
        each = [finetune(Classify, model, **given)[task.metric]]
    else:
        each = finetune_seeds(seeds, Classify, model, **given)[task.metric]["each"]
    return spread([100 * one for one in each])


def _files(data: Path) -> list[tuple[GlueTask, tuple[Path, Path]]]:
    """The tasks whose folders there are, with their files of train and dev."""
    if not data.is_dir():
        raise DataError(f"{data}: no such folder; name one that has a folder for each task of GLUE")
    folders = {_plain(path.name): path for path in sorted(data.iterdir()) if path.is_dir()}
    named = [(task, folders.get(_plain(task.name))) for task in TASKS]
    there = [(task, folder) for task, folder in named if folder is not None]
    if not there:
        known = ", ".join(task.name for task in TASKS)
        raise DataError(f"{data}: has no folder of a task of GLUE; they are called {known}")
    if absent := [task.name for task, folder in named if folder is None]:
        say(f"{data}: without {', '.join(absent)}")
    return [(task, (_file(folder, "train"), _file(folder, "dev|valid"))) for task, folder in there]


def _file(folder: Path, part: str) -> Path:
    files = [path for path in sorted(folder.iterdir()) if path.suffix in KINDS]
    files = [f for f in files if re.search(part, f.stem.lower()) and not OTHERS.search(f.stem)]
    if not files:
        raise DataError(
            f"{folder}: no file of {part.replace('|', ' or ')}; it is {', '.join(KINDS)}"
        )
    return files[0]


def _reading(task: GlueTask, files: tuple[Path, Path]) -> Reading | None:
    return task.reading if files[0].suffix == ".tsv" else None


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())
