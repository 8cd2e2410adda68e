"""Evaluation of the selected epoch on the test set, once, at the end of fine-tuning."""

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
"""Prefix of the names of test scores, which distinguishes them from scores on dev."""


def score_test(out: Path, task: type[Task[Any, Any]], test: Examples, device: str) -> None:
    """Evaluate the model of a run on the test set, and write `test.json`.

    Args:
        out: Run directory.
        task: Class of the task.
        test: Examples of the test set.
        device: Device such as "cpu", or "auto".
    """
    with quietly():  # Hide the warning that the run is not finished.
        answer = answering(out, task, device=resolve_device(device))
    scored = evaluate(answer, test, name="test")
    listed = "  ".join(f"{name} {value:.4f}" for name, value in numbers(scored).items())
    say(f"test, {len(test.examples):,} held-out examples: {listed}")
    write_json(out / TEST, {**test.record, "scores": numbers(scored), **_labels(scored)})


def read_test(out: Path) -> dict[str, float]:
    """Return the test scores of a run, with the prefix `test_`, or an empty dict.

    Args:
        out: Run directory.

    Raises:
        CheckpointError: If `test.json` is damaged.
    """
    if not (out / TEST).exists():
        return {}
    record = read_json(out / TEST, CheckpointError, "run bertkit evaluate")
    match record:
        case {"scores": {}}:
            scores: dict[str, float] = record["scores"]
            return {TEST_PREFIX + name: score for name, score in scores.items()}
    raise CheckpointError(
        f"{out / TEST}: damaged; delete the file, and run bertkit evaluate on the test set"
    )


def _labels(scored: dict[str, Any]) -> dict[str, Any]:
    return {
        name: scored[name] for name in ("by_label", "confusion", "calibration") if name in scored
    }
