"""End of fine-tuning: reports, scores and the model card of the best epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.checkpoint.run_directory import SCORES
from bertkit.console import say
from bertkit.models.lora import rate_factor
from bertkit.recipes.data_checks import check_answers, show_calibration, show_labels, unlearned
from bertkit.recipes.error_report import write_mistakes
from bertkit.recipes.final_test import read_test, score_test
from bertkit.recipes.model_card import write_card
from bertkit.storage import write_json
from bertkit.tasks import Task
from bertkit.tasks.examples import Examples
from bertkit.training.epochs import Epochs, check_published, read_scores
from bertkit.training.run import Run


def finish(
    run: Run, task: Task[Any, Any], epochs: Epochs, data: Mapping[str, Examples]
) -> dict[str, float]:
    """Write the errors, scores and model card of the best epoch to the run directory.

    Args:
        run: The run.
        task: The task.
        epochs: Epochs of the run.
        data: Examples under the names train, dev and, optionally, test.

    Returns:
        The scores of the best epoch on dev and test.
    """
    epochs.check_best()
    epochs.report_best()
    report = epochs.report()
    write_mistakes(run.out, task, epochs.answers(), data["dev"].examples, report)
    show_labels(report, "dev")
    settings = run.record["settings"]
    factor = rate_factor(settings["lora"]["rank"], head=task.head, batching=task.batching)
    note = unlearned(task, epochs.best["scores"], data["dev"].examples, epochs.answers())
    check_answers(report, "dev", unlearned=note, settings=settings, steps=run.total, factor=factor)
    show_calibration(epochs.calibration(), "dev", "; fitted on dev, so slightly too low")
    if "test" in data:
        score_test(run.out, type(task), data["test"], run.record["settings"]["device"])
    record = epochs.result(report)
    write_card(run.out, record)
    write_json(run.out / SCORES, record)  # Written last, because it marks the run as finished.
    run.drop_checkpoints()
    return {**record["dev"], **read_test(run.out)}


def finished(run: Run) -> dict[str, float]:
    """Return the scores of a finished run.

    Args:
        run: The run. Its checkpoints may still exist, if it was stopped before it deleted them.

    Raises:
        CheckpointError: If a file of the model has changed.
    """
    say(f"{run.out}: this run is finished")
    record = read_scores(run.out / SCORES)
    check_published(run.out, record.get("sha256", {}))
    run.drop_checkpoints()
    return {**record["dev"], **read_test(run.out)}
