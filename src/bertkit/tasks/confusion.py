"""Which labels are given for which: what one score for all of them hides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bertkit.data.labels import natural

LabelPair = tuple[str | None, str | None]
"""A label as expected and as answered; None stands for a label that was missed, or one that was
given where none was expected."""

NO_LABEL = "(none)"
"""How None is shown."""

MOST_LABELS = 12
"""Labels told on the console; of more, those with the lowest F1."""


class LabelScore(msgspec.Struct, frozen=True):
    """How well one label is recognized."""

    precision: float
    recall: float
    f1: float
    support: int
    """How often it is expected."""
    answered: int
    """How often it is answered."""


class ConfusionMatrix(msgspec.Struct, frozen=True):
    """How often each label is answered where each is expected.

    Shapes: `counts` (L, L), a row for each expected label, a column for each answered one. A label
    None, the last, is that of entities that were missed or made up.
    """

    labels: list[str | None]
    counts: list[list[int]]


class LabelReport(msgspec.Struct, frozen=True):
    """Scores of each label that is expected or answered, and which are confused.

    `confusion` is None where labels do not compete: where an example may have several.
    """

    labels: dict[str, LabelScore]
    confusion: ConfusionMatrix | None

    @property
    def only_answer(self) -> str | None:
        """The label that all answers have, "" where no label is ever given, though others are
        expected; None for a model that tells labels apart.
        """
        given = [label for label, score in self.labels.items() if score.answered]
        if len(given) > 1 or not any(label not in given for label in self.labels):
            return None
        return given[0] if given else ""

    def confused(self) -> list[tuple[str, str, int]]:
        """(expected, answered, times) of labels that are taken for others, most often first."""
        if self.confusion is None:
            return []
        names, counts = self.confusion.labels, self.confusion.counts
        pairs = [
            (expected, answered, times)
            for expected, row in zip(names, counts, strict=True)
            for answered, times in zip(names, row, strict=True)
            if times and expected is not None and answered is not None and expected != answered
        ]
        return sorted(pairs, key=lambda pair: -pair[2])

    def lines(self) -> list[str]:
        """A table for the console, and which labels are confused most."""
        shown = list(self.labels)
        if len(shown) > MOST_LABELS:
            worst = sorted(shown, key=lambda label: self.labels[label].f1)[:MOST_LABELS]
            shown = [label for label in shown if label in worst]
        short = {label: label if len(label) <= 30 else f"{label[:29]}…" for label in shown}
        width = max(len("label"), *map(len, short.values()))
        lines = [f"{'label':{width}}  precision  recall     f1  support"]
        for label in shown:
            one = self.labels[label]
            lines.append(
                f"{short[label]:{width}}  {one.precision:9.3f}  {one.recall:6.3f}  {one.f1:5.3f}  "
                f"{one.support:7,}"
            )
        if len(shown) < len(self.labels):
            lines.append(f"(the {len(shown)} lowest of {len(self.labels)} labels by f1)")
        if confused := self.confused()[:3]:
            told = ", ".join(
                f"{expected} → {answered} {times:,} of {self.labels[expected].support:,}"
                for expected, answered, times in confused
            )
            lines.append(f"confused most (expected → answered): {told}")
        return lines


def label_report(
    pairs: Iterable[LabelPair], labels: Sequence[str], *, compete: bool = True
) -> LabelReport | None:
    """The report of all pairs; `labels` are in the task's order. None where there are no pairs.

    Labels that do not `compete`, of which an example may have several, are not taken for others.
    """
    counts = Counter(pairs)
    if not counts:
        return None
    expected: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for (wanted, given), times in counts.items():
        if wanted is not None:
            expected[wanted] += times
        if given is not None:
            answered[given] += times
    seen = {*expected, *answered}
    order = [label for label in labels if label in seen]
    order += sorted(seen.difference(order), key=natural)
    scores = {
        label: _label_score(counts[label, label], expected[label], answered[label])
        for label in order
    }
    return LabelReport(scores, _matrix(counts, order) if compete else None)


def by_label(report: LabelReport | None) -> dict[str, Any]:
    """What records of scores say of it; nothing of none."""
    if report is None:
        return {}
    said = {"by_label": msgspec.to_builtins(report.labels)}
    if report.confusion is not None:
        said["confusion"] = msgspec.to_builtins(report.confusion)
    return said


def _label_score(right: int, expected: int, answered: int) -> LabelScore:
    return LabelScore(
        right / answered if answered else 0.0,
        right / expected if expected else 0.0,
        2 * right / (expected + answered),
        expected,
        answered,
    )


def _matrix(counts: Counter[LabelPair], order: Sequence[str]) -> ConfusionMatrix:
    alone = any(None in pair for pair in counts)
    names: list[str | None] = [*order, *([None] if alone else [])]
    return ConfusionMatrix(names, [[counts[row, column] for column in names] for row in names])
