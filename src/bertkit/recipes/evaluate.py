"""Score a fine-tuned model on labelled examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import DataError
from bertkit.nn.precision import Inference
from bertkit.pipelines import Answer, answering
from bertkit.recipes.mistakes import write_mistakes
from bertkit.storage import refuse_used
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Reading


def evaluate(
    model: str | Answer[Any],
    examples: Path | Sequence[Any],
    /,
    *,
    task: str | None = None,
    errors: Path | None = None,
    precision: Inference = "fp32",
    reading: Reading | None = None,
) -> dict[str, float]:
    """Score a fine-tuned model on a labelled file.

    Examples longer than the model are cut, or read in windows.
    Raises: DataError for a label the model does not know, ConfigError when `errors` is in use.

    Args:
        model: A fine-tuned model folder or hub id.
        examples: A file of labelled examples.
        task: module:Class, for a task from outside the package.
        errors: A folder, to be made, for the worst answers: errors.html and errors.jsonl.
        precision: Of the numbers the model computes with.
    """
    if errors is not None:
        refuse_used(errors, option="--errors")
    answer = answering(model, task, precision=precision) if isinstance(model, str) else model
    if isinstance(examples, Path):
        examples = read_examples(type(answer.task), examples, reading)
    if not examples:
        raise DataError("no rows to score")
    answer.task.check(examples)
    answers = answer.answers(examples, long=answer.task.long_of_files())
    if errors is not None:
        write_mistakes(errors, answer.task, answers, examples)
    cut = sum(getattr(answer, "truncated", False) for answer in answers)
    return {**answer.task.score(answers, examples), "rows": len(examples), "truncated": cut}
