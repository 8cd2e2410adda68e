"""Score a fine-tuned model on labelled examples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.checkpoint.directory import Loaded
from bertkit.config import with_keywords
from bertkit.errors import DataError
from bertkit.nn.precision import Inference
from bertkit.pipelines import TaskPipeline, answering
from bertkit.recipes.data_checks import check_answers, show_calibration, show_labels, unlearned
from bertkit.recipes.error_report import write_mistakes
from bertkit.storage import refuse_used
from bertkit.synonyms import check_keywords
from bertkit.tasks.capabilities import Calibrated, compute_label_report
from bertkit.tasks.confusion import by_label
from bertkit.tasks.examples import RowsLike, check_examples, read_examples, take
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.task import Reading, policy_of_files


@check_keywords
def evaluate(
    model: str | Path | Loaded | TaskPipeline[Any],
    examples: RowsLike,
    /,
    *,
    task: str | None = None,
    errors: Path | str | None = None,
    name: str | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
    reading: Reading | Mapping[str, Any] | None = None,
    **columns: Any,
) -> dict[str, Any]:
    """Evaluate a fine-tuned model on labeled examples.

    An embedding model needs no fine-tuning: of pairs of texts with scores, `pearson` and `spearman`
    are the correlations with the cosines of their embeddings.

    Returns: the task's scores, `rows` and `truncated`; where there are labels, also `by_label`, the
    scores of each, and `confusion`, how often each is answered where each is expected; of a
    calibrated model `calibration`, its expected calibration error with the temperature and without.

    Examples longer than the model are cut, or read in windows. What is said of the labels calls the
    rows by their file, or by `name`. A program may give a DataFrame or other rows (`data.given`),
    and name columns by keywords: `text_column="review", label_column="stars"`. Those that were
    named for training need not be named again.
    Raises: DataError for a label the model does not know, ConfigError when `errors` is in use.

    Args:
        model: Directory or hub id of a fine-tuned model, or of an embedding model.
        examples: A file of labelled examples.
        task: module:Class, for a task from outside the package.
        errors: A folder, to be made, for the worst answers: errors.html and errors.jsonl.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    if errors is not None:
        refuse_used(Path(errors), option="--errors")
    answer = (
        model
        if isinstance(model, TaskPipeline)
        else answering(
            model, task, precision=precision, device=device, embedding_task=Similarity.name
        )
    )
    (named,) = with_keywords("evaluate", {Reading: reading}, columns)
    if isinstance(examples, str | Path):
        name = name or str(examples)
        rows = read_examples(type(answer.task), examples, named, learned=answer.columns)
    else:
        name = name or "the rows"
        kind, learned = type(answer.task), answer.columns
        rows = list(take(kind, examples, named, "examples", learned=learned).examples)
    if not rows:
        raise DataError("no rows to score")
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
    cut = sum(getattr(answer, "truncated", False) for answer in answers)
    return {
        **scores,
        "rows": len(rows),
        "truncated": cut,
        **by_label(report),
        **({"calibration": calibration} if calibration else {}),
    }


def numbers(scored: Mapping[str, Any]) -> dict[str, float]:
    """Of what `evaluate` returns the scores alone."""
    return {
        name: value
        for name, value in scored.items()
        if isinstance(value, int | float) and name not in ("rows", "truncated")
    }
