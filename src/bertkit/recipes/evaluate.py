"""Evaluation of a fine-tuned model on labeled examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.checkpoint.directory import Loaded
from bertkit.config import PythonOnly, document_keywords, with_keywords
from bertkit.errors import DataError
from bertkit.nn.precision import Inference
from bertkit.pipelines import TaskPipeline, answering
from bertkit.recipes.data_checks import check_answers, show_calibration, show_labels, unlearned
from bertkit.recipes.error_report import write_mistakes
from bertkit.storage import check_unused
from bertkit.synonyms import check_keywords
from bertkit.tasks.capabilities import Calibrated, compute_label_report
from bertkit.tasks.confusion import by_label
from bertkit.tasks.examples import RowsLike, check_examples, read_examples, take
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.task import Reading, policy_of_files


@document_keywords(Reading)
@check_keywords
def evaluate(
    model: str | Path | Loaded | TaskPipeline[Any],
    examples: RowsLike,
    /,
    *,
    task: str | None = None,
    errors: Path | str | None = None,
    name: PythonOnly[str | None] = None,
    precision: Inference = "fp32",
    device: str = "auto",
    reading: Reading | Mapping[str, Any] | None = None,
    **columns: Any,
) -> dict[str, Any]:
    """Evaluate a fine-tuned model on labeled examples.

    An embedding model can be evaluated without fine-tuning. Its scores are the correlations between
    the cosine similarity and the label of each text pair. Depending on the task, examples that
    exceed the maximum length are truncated or split into windows. In Python, the examples can also
    be rows in memory.

    Args:
        model: Directory or hub id of a fine-tuned model, or of an embedding model.
        examples: File of labeled examples.
        task: Task of the model as module:Class, if the task is not part of bertkit.
        errors: Directory to write the wrong predictions to: errors.html and errors.jsonl. Must not
            exist.
        name: Name of the examples in messages. Default: the path of the file.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        reading: Columns and format of the examples. Default: the columns used in training.
        **columns: Columns and format as keywords, such as `text_column="review"`.

    Returns:
        The scores of the task, `rows` (the number of examples), and `truncated` (the number of
        truncated examples). If the task has labels, also `by_label` (the scores of each label) and
        `confusion` (counts of predictions for each label). If the model is calibrated, also
        `calibration` (the calibration error with and without the temperature).

    Raises:
        ConfigError: If `errors` exists.
        DataError: If an example is invalid, or its label is not a label of the model.
    """
    if errors is not None:
        check_unused(Path(errors), option="--errors")
    answer = model
    if not isinstance(answer, TaskPipeline):
        answer = answering(
            answer, task, precision=precision, device=device, embedding_task=Similarity.name
        )
    (resolved,) = with_keywords("evaluate", {Reading: reading}, columns)
    if isinstance(examples, str | Path):
        name = name or str(examples)
        rows = read_examples(type(answer.task), examples, resolved, learned=answer.columns)
    else:
        name = name or "the rows"
        kind, learned = type(answer.task), answer.columns
        rows = list(take(kind, examples, resolved, "examples", learned=learned).examples)
    if not rows:
        raise DataError(f"{name}: expected at least one example, got 0")
    check_examples(answer.task, rows)
    answers = answer.answers(rows, long=policy_of_files(answer.task))
    report = compute_label_report(answer.task, answers, rows)
    if errors is not None:
        write_mistakes(Path(errors), answer.task, answers, rows, report)
    show_labels(report, name)
    scores = answer.task.score(answers, rows)
    check_answers(report, name, unlearned=unlearned(answer.task, scores, rows, answers))
    calibration = {}
    if isinstance(answer.task, Calibrated):
        calibration = answer.task.calibration(answers, rows)
    show_calibration(calibration, name)
    truncated = sum(getattr(answer, "truncated", False) for answer in answers)
    return {
        **scores,
        "rows": len(rows),
        "truncated": truncated,
        **by_label(report),
        **({"calibration": calibration} if calibration else {}),
    }


def numbers(scored: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores in a result of `evaluate`, without its other entries.

    Args:
        scored: Result of `evaluate`.
    """
    return {
        name: value
        for name, value in scored.items()
        if isinstance(value, int | float) and name not in ("rows", "truncated")
    }
