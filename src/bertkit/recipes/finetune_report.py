"""The end of a fine-tuning: what is written beside the best epoch's model, and said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.checkpoint.run_directory import SCORES
from bertkit.console import say
from bertkit.models.lora import rate_factor
from bertkit.recipes.data_checks import check_answers, show_calibration, show_labels, unlearned
from bertkit.recipes.error_report import write_mistakes
from bertkit.recipes.final_test import read_test, score_test
from bertkit.recipes.model_card import write_card
from bertkit.tasks import Task
from bertkit.tasks.examples import Examples
from bertkit.training.epochs import (
    Epochs,
    check_published,
    read_scores,
)
from bertkit.training.run import Run


def finish(
    run: Run, task: Task[Any, Any], epochs: Epochs, data: Mapping[str, Examples]
) -> dict[str, float]:
    """Write errors, scores and card beside the best epoch's model; returns the scores."""
    epochs.check_best()
    epochs.report_best()
    report = epochs.report()
    write_mistakes(run.out, task, epochs.answers(), data["dev"].examples, report)
    show_labels(report, "dev")
    settings = run.record["settings"]
    factor = rate_factor(settings["lora"]["rank"], head=task.head, batching=task.batching)
    assert epochs.best is not None
    what = unlearned(task, epochs.best["scores"], data["dev"].examples, epochs.answers())
    check_answers(report, "dev", unlearned=what, settings=settings, steps=run.total, factor=factor)
    show_calibration(epochs.calibration(), "dev", "; fitted on these rows: test rows tell better")
    if "test" in data:
        score_test(run.out, type(task), data["test"], run.record["settings"]["device"])
    record = epochs.write(report)
    write_card(run.out, record)
    run.drop_checkpoints()
    return {**record["dev"], **read_test(run.out)}


def finished(out: Path) -> dict[str, float]:
    """The scores of a run that has ended. Raises: CheckpointError when its folder was changed."""
    say(f"{out}: this run is finished")
    record = read_scores(out / SCORES)
    check_published(out, record.get("sha256", {}))
    return {**record["dev"], **read_test(out)}
