"""What commonly goes wrong with labelled rows and with learning, told in a sentence with the
remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertkit.config import Settings
from bertkit.console import say
from bertkit.data.labels import WHOLE
from bertkit.tasks.capabilities import ChanceLevel
from bertkit.tasks.confusion import LabelReport
from bertkit.tasks.examples import Examples
from bertkit.tasks.task import Task
from bertkit.training.epochs import BEST_PREFIX

FEW_STEPS = 100
"""Number of steps below which a smaller batch size may help a model that has not learned."""

SMALL_RATE, HIGH_RATE = 1e-4, 3e-4
"""The learning rates that are usual of small models; the second is the highest of all."""

COMMON_LABEL_FRACTION = 0.7
"""The share of rows from which a label is so common that to answer it alone is tempting."""


def check_rows(
    task: Task[Any, Any], data: Mapping[str, Examples], options: Settings | None = None
) -> None:
    """Say which rows or labels are probably mistakes: `data` names train, dev and test.

    Of labels that are numbers say what was guessed, unless the `options` that were given say it.
    """
    if getattr(options, "regression", False) is None:
        _say_numbers(task)
    for sentence in (
        *_shared_rows(task, data),
        *_similar_labels(task.labels),
    ):
        say(f"warning: {sentence}")


def _say_numbers(task: Task[Any, Any]) -> None:
    """Log whether numeric labels are quantities or classes, and how to choose the other."""
    whole = all(map(WHOLE.fullmatch, task.labels))
    if task.options.regression:
        say(
            "labels: numbers, some with a fraction, so that a number is learned (regression); if "
            "they are names of classes: --no-regression, in Python regression=False"
        )
    elif whole and len(task.labels) > 2 and not task.options.multi_label:
        say(
            f"labels: whole numbers, learned as {len(task.labels):,} classes without an order; if "
            "they are quantities: --regression, in Python regression=True"
        )


def _shared_rows(task: Task[Any, Any], data: Mapping[str, Examples]) -> list[str]:
    """Rows to score on that are learned from, or that chose the epoch."""
    before: dict[Any, str] = {}
    sentences = []
    for name, part in data.items():
        asked = [task.reader.key(example) for example in part.examples]
        for other in dict.fromkeys(before.values()):
            again = [place for place, one in enumerate(asked) if before.get(one) == other]
            if len(again) == len(asked) and other == "train":
                # not refused: to learn a few rows by heart is a usual check that a task is learned
                sentences.append(
                    f"{name}: all of its {len(asked):,} rows are also in train: its scores say "
                    "nothing of other texts; give other rows"
                    + ", or hold some of train out (--dev 0.1)"
                    * (name == "dev")
                )
            elif again:
                sentences.append(
                    f"{name}: rows that are also in {other}: {len(again):,} of {len(asked):,} (the "
                    f"first is {part.examples[again[0]].where}); its scores are too high: remove "
                    "them from one"
                )
        before |= {one: name for one in asked if one not in before}
    return sentences


def _similar_labels(labels: Sequence[str]) -> list[str]:
    """Labels that differ in case or outer spaces alone."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(label.strip().casefold(), []).append(label)
    return [
        f"the labels {' and '.join(map(repr, same))} differ only in case or outer spaces, and are "
        "learned as different ones; write them alike"
        for same in alike.values()
        if len(same) > 1
    ]


def show_labels(report: LabelReport | None, name: str) -> None:
    """Say how well each label of these rows is recognized."""
    if report is not None:
        say(f"{name}, label by label:")
        for line in report.lines():
            say(f"  {line}")


def show_calibration(calibration: Mapping[str, float], name: str, remark: str = "") -> None:
    """Say how honest confidences are, with the temperature and without."""
    if calibration:
        say(
            f"{name}: expected calibration error {calibration['error_before']:.3f} before, "
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
    """Warn if predictions are constant or no better than chance, and log what may help.

    Args:
        report: Scores of each label, in tasks with labels.
        name: Name of the rows.
        unlearned: Result of `unlearned`.
        settings: Settings of the run that has ended.
        steps: Number of steps of that run.
        factor: Factor of the default learning rates (`rate_factor`).
    """
    only = None if report is None else report.only_answer
    if only is None and unlearned is None:
        return
    share, what = 0.0, unlearned
    if report is not None and only is not None:
        what = "no label is ever given"
        if only:
            total = sum(score.support for score in report.labels.values())
            share = report.labels[only].support / total
            what = f"every answer is {only!r}, the label expected in {share:.0%} of cases"
    lesson = "the task" if report is None else "to tell them apart"
    if settings is None:
        remedy = f"it has not learned {lesson}, or these rows are unlike those it learned"
    else:
        change = _change(settings["learning_rate"], settings["epochs"], factor)
        remedy = f"the model has not learned {lesson}. {change}"
        if steps is not None and steps < FEW_STEPS:
            remedy += f"; or lower batch_size: the run had only {steps} steps"
        if share > COMMON_LABEL_FRACTION:
            remedy += "; as the label is so common, class_weights balanced may help, too"
    say(f"warning: {name}: {what}: {remedy}")


def unlearned(
    task: Task[Any, Any],
    scores: Mapping[str, float],
    examples: Sequence[Any],
    answers: Sequence[Any] = (),
) -> str | None:
    """Describe a score that is not above chance, or return None."""
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


def _rates(factor: float) -> tuple[float, float, str]:
    """The learning rates that small models want, the lowest and the highest, and in words."""
    small, high = round(SMALL_RATE * factor, 9), round(HIGH_RATE * factor, 9)
    return small, high, f"{_short(small)} to {_short(high)}"


def _short(rate: float) -> str:
    return f"{rate:.0e}".replace("e-0", "e-")


def _change(rate: float, epochs: int, factor: float) -> str:
    """Return the change of the learning rate or the number of epochs that may help."""
    used, more = f"it was {rate:g}", f"more epochs (there were {epochs})"
    small, high, range_ = _rates(factor)
    if rate < high:
        return f"Raise learning_rate ({used}; small models want {range_}) or take {more}"
    if rate > high:
        usual = f"{_short(small / 5)} to {_short(high)}"
        return f"Lower learning_rate ({used}; {usual} are usual) or take {more}"
    return f"Take {more}: learning_rate is as high as small models want it ({used})"
