"""The command that fine-tunes a model for a task: its options are also the task's."""

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
    """The function that fine-tunes for a task, with the options that the task has."""

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
            model: A model folder or hub id.
            train: Labelled examples to learn from.
            dev: Examples that select the best epoch and are scored: a file, or the fraction of
                train to hold out, such as 0.1.
            test: Examples, or a fraction of train, that only the selected epoch is scored on, once.
            out: The folder of what is made; it must not exist yet.
            resume: Go on with a run that was stopped.
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
