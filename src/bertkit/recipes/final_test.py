"""Rows that chose nothing: scored once, by the epoch that dev chose, and written apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit.checkpoint.run_directory import TEST
from bertkit.console import quietly, say
from bertkit.errors import CheckpointError
from bertkit.nn.precision import resolve_device
from bertkit.pipelines import answering
from bertkit.recipes.evaluate import evaluate, numbers
from bertkit.storage import read_json, write_json
from bertkit.tasks import Task
from bertkit.tasks.examples import Examples

TEST_PREFIX = "test_"
"""Begins the names of their scores beside those of dev."""


def score_test(out: Path, task: type[Task[Any, Any]], test: Examples, device: str) -> None:
    """Score the folder's model on these rows, on a device, and write `test.json`."""
    with quietly():  # that the run has not ended is known
        answer = answering(out, task, device=resolve_device(device))
    scored = evaluate(answer, test, name="test")
    listed = "  ".join(f"{name} {value:.4f}" for name, value in numbers(scored).items())
    say(f"test, {len(test.examples):,} rows that chose nothing: {listed}")
    write_json(out / TEST, {**test.record, "scores": numbers(scored), **_labels(scored)})


def read_test(out: Path) -> dict[str, float]:
    """The scores of a run's test rows, named `test_…`; none where it had none.

    Raises: CheckpointError for a damaged file.
    """
    if not (out / TEST).exists():
        return {}
    record = read_json(out / TEST, CheckpointError, "score the rows again with bertkit evaluate")
    match record:
        case {"scores": {}}:
            scores: dict[str, float] = record["scores"]
            return {TEST_PREFIX + name: score for name, score in scores.items()}
    raise CheckpointError(
        f"{out / TEST}: damaged; remove it, and score the rows again with bertkit evaluate"
    )


def _labels(scored: dict[str, Any]) -> dict[str, Any]:
    return {
        name: scored[name] for name in ("by_label", "confusion", "calibration") if name in scored
    }
