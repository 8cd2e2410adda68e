"""The same fine-tuning with several seeds: how far a score is chance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from bertkit import tasks
from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.run_directory import SCORES, SEEDS
from bertkit.config import Settings
from bertkit.errors import ConfigError
from bertkit.recipes.finetune import Finetune, finetune, grouped
from bertkit.recipes.finetune_report import best_run, publish
from bertkit.recipes.study import study
from bertkit.storage import check_out, write_json
from bertkit.tasks.examples import RowsLike
from bertkit.tasks.held_out import take_rows
from bertkit.tasks.task import Reading, Task
from bertkit.training.epochs import read_scores
from bertkit.training.run import Resume
from bertkit.training.teacher import TaskTeacher


def finetune_seeds(
    count: int,
    task: str | type[Task[Any, Any]],
    model: str | Path | Loaded,
    *,
    train: RowsLike,
    dev: RowsLike | float,
    test: RowsLike | float | None = None,
    out: Path | str,
    settings: Finetune | Mapping[str, Any] | None = None,
    options: Settings | Mapping[str, Any] | None = None,
    reading: Reading | Mapping[str, Any] | None = None,
    resume: Resume = False,
    teacher: TaskTeacher | None = None,
    **keywords: Any,
) -> dict[str, dict[str, Any]]:
    """`finetune` with `count` seeds from settings.seed on: mean, sd and each of every score.

    Each run is a folder seed-N in `out`; `out` itself becomes the model of the best.
    """
    kind, out = tasks.find(task) if isinstance(task, str) else task, Path(out)
    settings, options, reading = grouped(kind, settings, options, reading, keywords)
    if count < 1:
        raise ConfigError(f"seeds: {count}; run one at least")
    check_out(out, resume=resume)
    data = take_rows(kind, train, dev, test, reading, options=options, seed=settings.seed)

    def run(seed: int) -> dict[str, float]:
        folder = out / f"seed-{seed}"
        return finetune(
            kind,
            model,
            train=data["train"],
            dev=data["dev"],
            test=data.get("test"),
            out=folder,
            settings=structs.replace(settings, seed=seed),
            options=options,
            reading=reading,
            resume="auto" if resume else False,
            teacher=teacher,
        )

    seeds = range(settings.seed, settings.seed + count)
    summary = study({kind.name: run}, seeds)[kind.name]
    metric = read_scores(out / f"seed-{settings.seed}" / SCORES)["metric"]
    folders = [out / f"seed-{seed}" for seed in seeds]
    best = best_run(folders, summary[metric]["each"], kind, data["dev"].examples)
    write_json(out / SEEDS, {"best": best.name, "scores": summary})
    publish(best, out)
    return summary
