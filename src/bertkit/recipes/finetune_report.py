"""The end of a fine-tuning: what is written beside the best epoch's model, and said."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.checkpoint.run_directory import SCORES, TEST
from bertkit.console import quietly, say
from bertkit.engine.engine import MAX_BATCH_TOKENS
from bertkit.metrics import worth
from bertkit.models.lora import rate_factor
from bertkit.pipelines import answering
from bertkit.recipes.card import write_card
from bertkit.recipes.data_checks import check_answers, show_calibration, show_labels, unlearned
from bertkit.recipes.error_report import write_mistakes
from bertkit.recipes.final_test import read_test, score_test
from bertkit.storage import link_or_copy, sha256, writing
from bertkit.tasks import Task
from bertkit.tasks.examples import Examples
from bertkit.training.dev_loss import dev_loss
from bertkit.training.epochs import (
    ADAPTER_DIRECTORY,
    Epochs,
    check_published,
    read_scores,
    read_seeds,
)
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


def best_run(
    folders: Sequence[Path], scores: Sequence[float], kind: type[Task[Any, Any]], dev: Sequence[Any]
) -> Path:
    """Return the run with the highest score, and of equal runs the one with the lowest loss on dev.

    The loss of a run without weights counts as infinite.
    """
    highest = max(map(worth, scores))
    equal = [f for f, score in zip(folders, scores, strict=True) if worth(score) == highest]
    return equal[0] if len(equal) == 1 else min(equal, key=lambda f: _dev_loss(f, kind, dev))


def _dev_loss(folder: Path, kind: type[Task[Any, Any]], dev: Sequence[Any]) -> float:
    if not any(folder.glob("*.safetensors")):
        return math.inf
    with quietly():
        model = answering(folder, kind)
        features = model.task.features(
            dev,
            model.loaded.tokenizer,
            model.loaded.length,
            long=model.task.long_of_files(),
            labelled=True,
        )
    return dev_loss(model.task, model.loaded.model, features, MAX_BATCH_TOKENS)


def publish(best: Path, out: Path, *, of: int = 1) -> None:
    """Make `out` the model folder of one of the runs that it holds, the best `of` so many settings.

    Its card has the means of seeds where there were several. Of another run that was the best
    before nothing stays.
    """
    if (out / SCORES).exists() and sha256(out / SCORES) != sha256(best / SCORES):
        (out / TEST).unlink(missing_ok=True)
        shutil.rmtree(out / ADAPTER_DIRECTORY, ignore_errors=True)
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
