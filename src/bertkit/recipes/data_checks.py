"""Warnings about common mistakes in labeled data and settings, with remedies."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.config import Settings
from bertkit.console import say
from bertkit.data.labels import WHOLE, number
from bertkit.tasks.capabilities import ChanceLevel, Labeled
from bertkit.tasks.confusion import LabelReport
from bertkit.tasks.examples import Examples
from bertkit.tasks.task import Task
from bertkit.training.epochs import BEST_PREFIX

FEW_STEPS = 100
"""Number of steps below which the warning recommends a smaller batch size."""

SMALL_RATE, HIGH_RATE = 1e-4, 3e-4
"""Usual range of learning rates for small models. Larger models use lower rates."""

FREQUENT = 10
"""Number of examples of a label from which labels with a single example are reported."""

SHOWN_LABELS = 5
"""Number of labels with a single example that the warning names."""

COMMON_LABEL_FRACTION = 0.7
"""Class weights are recommended if one label has more than this fraction of the examples."""


def check_rows(
    task: Task[Any, Any], data: Mapping[str, Examples], options: Settings | None = None
) -> None:
    """Warn about examples and labels that are probably mistakes.

    Also log whether numeric labels are interpreted as classes or as quantities, unless the
    `regression` option was set.

    Args:
        task: The task, with the labels of the training examples.
        data: Examples under the names train, dev and, optionally, test.
        options: Options of the task, as the user set them.
    """
    if getattr(options, "regression", False) is None:
        _log_numeric_labels(task)
    rare = _rare_labels(task, data["train"]) if isinstance(task, Labeled) else []
    for message in (*_shared_rows(task, data), *_similar_labels(task.labels), *rare):
        say(f"warning: {message}")


def _log_numeric_labels(task: Task[Any, Any]) -> None:
    """Log whether numeric labels are used as quantities or as classes, and how to change this."""
    whole = all(map(WHOLE.fullmatch, task.labels))
    if task.options.regression:
        say(
            "labels: decimal numbers, so the task is regression; if they are class names, use "
            "--no-regression (in Python regression=False)"
        )
    elif whole and len(task.labels) > 2 and not task.options.multi_label:
        say(
            f"labels: integers, used as {len(task.labels):,} unordered classes; if they are "
            "quantities, use --regression (in Python regression=True)"
        )


def _shared_rows(task: Task[Any, Any], data: Mapping[str, Examples]) -> list[str]:
    """Return warnings about examples that occur in more than one of train, dev and test."""
    part_of: dict[Any, str] = {}
    messages = []
    for name, part in data.items():
        keys = [task.reader.key(example) for example in part.examples]
        for other in dict.fromkeys(part_of.values()):
            shared = [index for index, key in enumerate(keys) if part_of.get(key) == other]
            if len(shared) == len(keys) and other == "train":
                # This may be intended: overfitting a few examples is a common test of a new task.
                messages.append(
                    f"{name}: all {len(keys):,} examples are also in train, so its scores do not "
                    "show how well the model generalizes; use other examples"
                    + ", or hold out a part of train (--dev 0.1)"
                    * (name == "dev")
                )
            elif shared:
                messages.append(
                    f"{name}: {len(shared):,} of {len(keys):,} examples are also in {other} "
                    f"(first: {part.examples[shared[0]].where}), so its scores are too high; "
                    f"remove them from {name} or {other}"
                )
        part_of |= {key: name for key in keys if key not in part_of}
    return messages


def _similar_labels(labels: Sequence[str]) -> list[str]:
    """Return warnings about labels that look alike or are the same number."""
    groups: dict[str | float, list[str]] = {}
    for label in labels:
        # NFKC also replaces letters of full width. Format characters (Cf) are invisible.
        normal = unicodedata.normalize("NFKC", label.strip()).casefold()
        name = "".join(c for c in normal if unicodedata.category(c) != "Cf")
        value = number(name)
        groups.setdefault(name if value is None else value, []).append(label)
    return [
        f"the labels {' and '.join(map(repr, group))} differ only in case, spaces, zeros, or "
        "Unicode characters that look alike, but count as different labels; use one spelling"
        for group in groups.values()
        if len(group) > 1
    ]


def _rare_labels(task: Labeled, train: Examples) -> list[str]:
    """Return a warning about labels that only one example has, if another label is frequent."""
    found: dict[str, list[Any]] = {}
    for example in train.examples:
        for label in dict.fromkeys(task.labels_of(example)):
            found.setdefault(label, []).append(example)
    rare = [f"{label!r} ({rows[0].where})" for label, rows in found.items() if len(rows) == 1]
    if not rare or max(map(len, found.values())) < FREQUENT:
        return []
    shown = ", ".join(rare[:SHOWN_LABELS]) + ", ..." * (len(rare) > SHOWN_LABELS)
    return [f"train: labels of only one example: {shown}; correct misspelled labels"]


def show_labels(report: LabelReport | None, name: str) -> None:
    """Print the scores of each label.

    Args:
        report: Scores of each label. If None, nothing is printed.
        name: Name of the examples, such as "dev".
    """
    if report is not None:
        say(f"{name}, label by label:")
        for line in report.lines():
            say(f"  {line}")


def show_calibration(calibration: Mapping[str, float], name: str, remark: str = "") -> None:
    """Print the expected calibration error with and without the temperature.

    Args:
        calibration: Result of `Calibrated.calibration`. If empty, nothing is printed.
        name: Name of the examples, such as "dev".
        remark: Text at the end of the line.
    """
    if calibration:
        say(
            f"{name}: expected calibration error {calibration['error_before']:.3f} without, "
            f"{calibration['error']:.3f} with temperature {calibration['temperature']:.2f}{remark}"
        )


def check_answers(
    report: LabelReport | None,
    name: str,
    *,
    unlearned: str | None = None,
    settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    factor: float = 1.0,
) -> None:
    """Warn if all predictions are equal or no better than chance, and suggest what may help.

    Args:
        report: Scores of each label, or None if the task has no labels.
        name: Name of the examples, such as "dev".
        unlearned: Description of a score at chance level, as returned by the function `unlearned`.
        settings: Settings of the training run, if the model was trained just before.
        steps: Number of steps of the training run.
        factor: Factor by which usual learning rates are multiplied; see `rate_factor`.
    """
    only = None if report is None else report.only_answer
    if only is None and unlearned is None:
        return
    fraction, problem = 0.0, unlearned
    if report is not None and only is not None:
        problem = "no label is predicted for any example"
        if only:
            total = sum(score.support for score in report.labels.values())
            fraction = report.labels[only].support / total
            problem = f"all predictions are {only!r}, the label of {fraction:.0%} of the examples"
    goal = "the task" if report is None else "to separate the labels"
    if settings is None:
        remedy = f"the model has not learned {goal}, or the examples differ from its training data"
    else:
        change = _change(settings["learning_rate"], settings["epochs"], factor)
        remedy = f"the model has not learned {goal}. {change}"
        if steps is not None and steps < FEW_STEPS:
            remedy += f", or reduce batch_size (the run had only {steps} steps)"
        if fraction > COMMON_LABEL_FRACTION:
            remedy += "; class_weights = balanced may also help, because one label is so frequent"
    say(f"warning: {name}: {problem}; {remedy}")


def unlearned(
    task: Task[Any, Any],
    scores: Mapping[str, float],
    examples: Sequence[Any],
    answers: Sequence[Any] = (),
) -> str | None:
    """Describe the first score that is not above its chance level, if there is one.

    Args:
        task: The task.
        scores: Scores of the predictions.
        examples: The examples.
        answers: The predictions.

    Returns:
        The description, or None if all scores are above chance or the task has no chance level.
    """
    if not isinstance(task, ChanceLevel):
        return None
    for score, chance in task.chance(examples).items():
        value = scores.get(score, scores.get(BEST_PREFIX + score))
        if value is not None and not value > chance:
            constant = task.constant_prediction(answers) if answers else None
            if constant is not None:
                return f"all {len(answers):,} predictions are {constant!r}"
            return f"{score} {value:.4f} is not above {chance:.4f}, the score of guessing"
    return None


def _short(rate: float) -> str:
    return f"{rate:.0e}".replace("e-0", "e-")


def _change(rate: float, epochs: int, factor: float) -> str:
    """Suggest a change of the learning rate or of the number of epochs."""
    used, more = f"{rate:g} was used", f"epochs ({epochs} were used)"
    small, high = round(SMALL_RATE * factor, 9), round(HIGH_RATE * factor, 9)
    if rate < high:
        usual = f"{_short(small)} to {_short(high)}"
        return f"Increase learning_rate ({used}; small models need {usual}) or {more}"
    if rate > high:
        usual = f"{_short(small / 5)} to {_short(high)}"
        return f"Reduce learning_rate ({used}; {usual} is usual) or increase {more}"
    return f"Increase {more}; learning_rate is already high ({used})"
