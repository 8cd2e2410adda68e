"""Scores of each label, and confusion matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bertkit.data.labels import label_sort_key

LabelPair = tuple[str | None, str | None]
"""Expected and predicted label. If the predicted label is None, the expected label was missed. If
the expected label is None, the predicted label was not expected."""

NO_LABEL = "(none)"
"""Text that tables show instead of the label None."""

MOST_LABELS = 12
"""Maximum number of labels shown on the console. If there are more, those with the lowest F1 are
shown."""


class LabelScore(msgspec.Struct, frozen=True):
    """Scores of a label."""

    precision: float
    recall: float
    f1: float
    support: int
    """Number of times the label is expected."""
    answered: int
    """Number of times the label is predicted."""


class ConfusionMatrix(msgspec.Struct, frozen=True):
    """Confusion matrix: numbers of predictions by expected and predicted label.

    `counts` has a row for each expected label and a column for each predicted label. If entities
    were missed, or predicted although none was expected, the last label is None.

    Shapes:
        counts: (L, L).
    """

    labels: list[str | None]
    counts: list[list[int]]


class LabelReport(msgspec.Struct, frozen=True):
    """Scores of each label that is expected or predicted, and the confusion matrix.

    `confusion` is None if an example can have several labels.
    """

    labels: dict[str, LabelScore]
    confusion: ConfusionMatrix | None

    @property
    def only_answer(self) -> str | None:
        """The only label that is predicted, although others are expected.

        It is "" if no label is predicted at all, and None if several labels are predicted or no
        other label is expected.
        """
        predicted = [label for label, score in self.labels.items() if score.answered]
        if len(predicted) > 1 or not any(label not in predicted for label in self.labels):
            return None
        return predicted[0] if predicted else ""

    def confused(self) -> list[tuple[str, str, int]]:
        """Return (expected label, predicted label, count) of confused labels, most common first."""
        if self.confusion is None:
            return []
        names, counts = self.confusion.labels, self.confusion.counts
        pairs = [
            (expected, predicted, count)
            for expected, row in zip(names, counts, strict=True)
            for predicted, count in zip(names, row, strict=True)
            if count and expected is not None and predicted is not None and expected != predicted
        ]
        return sorted(pairs, key=lambda pair: -pair[2])

    def lines(self) -> list[str]:
        """Return the lines of a table for the console, and the labels that are confused most."""
        shown = list(self.labels)
        if len(shown) > MOST_LABELS:
            worst = sorted(shown, key=lambda label: self.labels[label].f1)[:MOST_LABELS]
            shown = [label for label in shown if label in worst]
        short = {label: label if len(label) <= 30 else f"{label[:29]}…" for label in shown}
        width = max(len("label"), *map(len, short.values()))
        lines = [f"{'label':{width}}  precision  recall     f1  support"]
        for label in shown:
            score = self.labels[label]
            lines.append(
                f"{short[label]:{width}}  {score.precision:9.3f}  {score.recall:6.3f}  "
                f"{score.f1:5.3f}  {score.support:7,}"
            )
        if len(shown) < len(self.labels):
            lines.append(f"(the {len(shown)} lowest of {len(self.labels)} labels by f1)")
        if confused := self.confused()[:3]:
            summary = ", ".join(
                f"{expected} → {predicted} {count:,} of {self.labels[expected].support:,}"
                for expected, predicted, count in confused
            )
            lines.append(f"confused most (expected → answered): {summary}")
        return lines


def label_report(
    pairs: Iterable[LabelPair], labels: Sequence[str], *, compete: bool = True
) -> LabelReport | None:
    """Compute the scores of each label, and the confusion matrix.

    Args:
        pairs: Pairs of an expected and a predicted label.
        labels: Labels in the order of the task.
        compete: Whether each example has exactly one label. Only then is there a confusion matrix.

    Returns:
        The report, or None if there are no pairs.
    """
    counts = Counter(pairs)
    if not counts:
        return None
    expected: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    for (expected_label, predicted_label), count in counts.items():
        if expected_label is not None:
            expected[expected_label] += count
        if predicted_label is not None:
            predicted[predicted_label] += count
    seen = {*expected, *predicted}
    order = [label for label in labels if label in seen]
    order += sorted(seen.difference(order), key=label_sort_key)
    scores = {
        label: _score_label(counts[label, label], expected[label], predicted[label])
        for label in order
    }
    return LabelReport(scores, _count_matrix(counts, order) if compete else None)


def by_label(report: LabelReport | None) -> dict[str, Any]:
    """Return the entries of a report for a record of scores, or an empty dict without a report."""
    if report is None:
        return {}
    entries = {"by_label": msgspec.to_builtins(report.labels)}
    if report.confusion is not None:
        entries["confusion"] = msgspec.to_builtins(report.confusion)
    return entries


def _score_label(right: int, expected: int, predicted: int) -> LabelScore:
    return LabelScore(
        right / predicted if predicted else 0.0,
        right / expected if expected else 0.0,
        2 * right / (expected + predicted),
        expected,
        predicted,
    )


def _count_matrix(counts: Counter[LabelPair], order: Sequence[str]) -> ConfusionMatrix:
    has_missing = any(None in pair for pair in counts)
    names: list[str | None] = [*order, *([None] if has_missing else [])]
    return ConfusionMatrix(names, [[counts[row, column] for column in names] for row in names])
