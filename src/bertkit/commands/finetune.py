"""Commands `finetune TASK`, which have options for training and options of the task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit.config import Settings
from bertkit.recipes.finetune import Finetune
from bertkit.recipes.finetune import finetune as fit_task
from bertkit.tasks import Task
from bertkit.tasks.task import Reading


def finetune(task: type[Task[Any, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a function that fine-tunes a model for a task and accepts the options of the task."""

    def run(
        *,
        model: str,
        train: Path,
        dev: Path,
        test: Path | None = None,
        out: Path,
        resume: bool = False,
        settings: Finetune | None = None,
        options: Settings | None = None,
        reading: Reading | None = None,
    ) -> dict[str, Any]:
        """Fine-tune a model for the task.

        Args:
            model: Model directory or hub id.
            train: File of labeled examples.
            dev: Examples for selecting the best epoch: a file, or the fraction of train to hold
                out, such as 0.1.
            test: Examples for scoring the selected epoch once, after training: a file, or a
                fraction of train to hold out.
            out: Output directory. Must not exist.
            resume: Whether to resume an interrupted run.
            settings: Settings of training.
            options: Options of the task.
            reading: Columns and format of the examples.
        """
        return fit_task(
            task,
            model,
            train=train,
            dev=dev,
            test=test,
            out=out,
            settings=settings,
            options=options,
            reading=reading,
            resume=resume,
        )

    run.__annotations__["options"] = task.Options
    return run
