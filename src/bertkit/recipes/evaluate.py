"""Score a fine-tuned folder on labelled examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import DataError
from bertkit.pipelines import Answer
from bertkit.recipes.mistakes import write_mistakes
from bertkit.storage import refuse_used


def evaluate(
    ready: Answer[Any], examples: Sequence[Any], *, errors: Path | None = None
) -> dict[str, float]:
    """The task's scores on these examples; those longer than the model are cut, or windowed.

    `errors` is a folder, to be made, for the list of the worst answers.
    Raises: DataError for a label the model does not know, ConfigError when `errors` is in use.
    """
    if errors is not None:
        refuse_used(errors, option="--errors")
    if not examples:
        raise DataError("no rows to score")
    task = ready.task
    task.check(examples)
    answers = ready.answers(examples, long=task.long_of_files())
    if errors is not None:
        write_mistakes(errors, task, answers, examples)
    cut = sum(getattr(answer, "truncated", False) for answer in answers)
    return {**task.score(answers, examples), "rows": len(examples), "truncated": cut}
