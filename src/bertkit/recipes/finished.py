"""The end of a fine-tuning: what is written beside the best epoch's model, and said."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.checkpoint.run_folder import SCORES, TEST
from bertkit.console import say
from bertkit.models.lora import rate_factor
from bertkit.recipes.card import write_card
from bertkit.recipes.mistakes import write_mistakes
from bertkit.recipes.sanity import check_answers, show_calibration, show_labels
from bertkit.recipes.testing import read_test, score_test
from bertkit.storage import link_or_copy, sha256, writing
from bertkit.tasks import Task
from bertkit.tasks.examples import Examples
from bertkit.training.epochs import ADAPTER, Epochs, check_published, read_scores, read_seeds
from bertkit.training.run import Run


def finish(
    run: Run, task: Task[Any, Any], epochs: Epochs, data: Mapping[str, Examples]
) -> dict[str, float]:
    """Write errors, scores and card beside the best epoch's model; returns the scores."""
    epochs.check_best()
    epochs.say_kept()
    report = epochs.report()
    write_mistakes(run.out, task, epochs.answers(), data["dev"].examples, report)
    show_labels(report, "dev")
    settings = run.record["settings"]
    factor = rate_factor(settings["lora"]["rank"], head=task.head, batching=task.batching)
    check_answers(report, "dev", settings=settings, steps=run.total, factor=factor)
    show_calibration(epochs.calibration(), "dev", "; fitted on these rows: test rows tell better")
    if "test" in data:
        score_test(run.out, type(task), data["test"], run.record["settings"]["device"])
    record = epochs.write(report)
    write_card(run.out, record)
    run.drop_checkpoints()
    return {**record["dev"], **read_test(run.out)}


def publish(best: Path, out: Path, *, of: int = 1) -> None:
    """Make `out` the model folder of one of the runs that it holds, the best `of` so many settings.

    Its card has the means of seeds where there were several. Of another run that was the best
    before nothing stays.
    """
    if (out / SCORES).exists() and sha256(out / SCORES) != sha256(best / SCORES):
        (out / TEST).unlink(missing_ok=True)
        shutil.rmtree(out / ADAPTER, ignore_errors=True)
    for file in best.rglob("*"):
        place = file.relative_to(best)
        if file.is_file() and not place.parts[0].startswith("seed-"):
            (out / place).parent.mkdir(exist_ok=True)
            with writing(out / place) as partial:
                link_or_copy(file, partial)
    describe(out, of=of)


def describe(out: Path, *, of: int = 1) -> None:
    """Write the card of a folder that was published."""
    write_card(out, read_scores(out / SCORES), read_seeds(out), of=of)


def finished(out: Path) -> dict[str, float]:
    """The scores of a run that has ended. Raises: CheckpointError when its folder was changed."""
    say(f"{out}: this run is finished")
    record = read_scores(out / SCORES)
    check_published(out, record.get("sha256", {}))
    return {**record["dev"], **read_test(out)}
