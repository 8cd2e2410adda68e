"""Reports of wrong predictions: `errors.jsonl` for tools, and the web page `errors.html`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from bertkit.storage import write_text
from bertkit.tasks.capabilities import Labeled
from bertkit.tasks.confusion import NO_LABEL, LabelPair, LabelReport
from bertkit.tasks.task import A, E, ErrorRecord, Task
from bertkit.view.page import render

JSONL, HTML = "errors.jsonl", "errors.html"
SHOWN_ERRORS = 100
"""Number of errors that the page lists at first. `errors.jsonl` contains all errors."""
PAIR_ERRORS = 20
"""Number of further errors per pair of labels. The page lists them when the pair is selected."""
MAX_ERRORS = 1000
"""Maximum number of errors on the page."""
MAX_MATRIX_LABELS = 40
"""Maximum number of labels for which the page shows the confusion matrix. For more labels, it lists
the pairs that are confused most often."""


class Mistake(NamedTuple):
    """A wrong prediction, with each pair of an expected label and a different predicted label."""

    where: str
    record: ErrorRecord
    pairs: Sequence[LabelPair]


class MistakeRow(NamedTuple):
    """A wrong prediction, as the page shows it.

    `pairs` contains the indices of the expected and the predicted label of each pair, such as
    "0-2 1-". A missing index means that no label was expected or predicted.
    """

    where: str
    record: ErrorRecord
    pairs: str
    listed: bool
    """Whether the row is listed before a pair is selected."""


class PairCell(NamedTuple):
    """Button that shows how often a pair of labels occurs, and selects the errors of the pair.

    `pair` has the format of a pair in `MistakeRow.pairs`. If it is empty, there is no button.
    """

    times: int
    pair: str
    label: str = ""
    """Text for screen readers."""


def write_mistakes(
    folder: Path,
    task: Task[E, A],
    answers: Sequence[A],
    examples: Sequence[E],
    report: LabelReport | None = None,
) -> None:
    """Write reports that list wrong predictions with file and line, the worst first.

    Args:
        folder: Directory to write the reports to.
        task: The task.
        answers: The predictions.
        examples: The examples, with targets.
        report: Scores of each label. If set, the page also shows these scores, and buttons that
            select the errors of a label or a pair of labels.
    """
    labeled = task if report and isinstance(task, Labeled) else None
    wrong = []
    for answer, example in zip(answers, examples, strict=True):
        record = task.error_record(answer, example)
        if record.severity > 0:
            pairs = labeled.label_pairs(answer, example) if labeled else ()
            different = [pair for pair in pairs if pair[0] != pair[1]]
            wrong.append(Mistake(example.where, record, different))
    wrong.sort(key=lambda mistake: -mistake.record.severity)
    lines = [
        json.dumps({"where": mistake.where, **asdict(mistake.record)}, ensure_ascii=False) + "\n"
        for mistake in wrong
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JSONL, "".join(lines))
    numbers = {label: str(number) for number, label in enumerate(report.labels if report else ())}
    page = render(
        "errors.html",
        script="errors.js" if numbers else "",
        name=folder.name,
        wrong=len(wrong),
        of=len(examples),
        errors=list(_rows(wrong, numbers)),
        listed=min(len(wrong), SHOWN_ERRORS),
        labels=_labels(report, numbers),
        matrix=_matrix(report, numbers),
        confused=[] if report is None else _confused(report, numbers),
    )
    write_text(folder / HTML, page)


def _rows(wrong: Sequence[Mistake], numbers: dict[str, str]) -> Iterator[MistakeRow]:
    """Yield the worst mistakes, and further ones for each pair of labels."""
    seen: Counter[LabelPair] = Counter()
    count = 0
    for index, mistake in enumerate(wrong):
        listed = index < SHOWN_ERRORS
        if count < MAX_ERRORS and (listed or any(seen[p] < PAIR_ERRORS for p in mistake.pairs)):
            pairs = " ".join(dict.fromkeys(_pair_id(pair, numbers) for pair in mistake.pairs))
            yield MistakeRow(Path(mistake.where).name, mistake.record, pairs, listed)
            count += 1
            seen.update(set(mistake.pairs))


def _pair_id(pair: LabelPair, numbers: dict[str, str]) -> str:
    return "-".join("" if label is None else numbers[label] for label in pair)


def _labels(report: LabelReport | None, numbers: dict[str, str]) -> list[tuple[object, ...]]:
    """Return the table of labels: name, scores, and numbers of false negatives and positives."""
    rows: list[tuple[object, ...]] = []
    for label, score in report.labels.items() if report else ():
        right = round(score.recall * score.support)
        missed, given = score.support - right, score.answered - right
        rows.append(
            (
                label,
                *(score.precision, score.recall, score.f1, score.support),
                PairCell(missed, f"{numbers[label]}-*" if missed else "", f"{label} missed"),
                PairCell(given, f"*-{numbers[label]}" if given else "", f"{label} wrongly given"),
            )
        )
    return rows


def _matrix(
    report: LabelReport | None, numbers: dict[str, str]
) -> tuple[list[str], list[tuple[str, list[PairCell]]]] | None:
    """Return the columns and rows of the confusion matrix, or None if it is too large to show."""
    if (
        report is None
        or report.confusion is None
        or len(report.confusion.labels) > MAX_MATRIX_LABELS
    ):
        return None
    names = report.confusion.labels
    shown = [NO_LABEL if name is None else name for name in names]
    rows = []
    for expected, title, row in zip(names, shown, report.confusion.counts, strict=True):
        cells = [
            PairCell(
                times,
                _pair_id((expected, answered), numbers) if times and expected != answered else "",
                f"{title} predicted as {given}",
            )
            for answered, given, times in zip(names, shown, row, strict=True)
        ]
        rows.append((title, cells))
    return shown, rows


def _confused(report: LabelReport, numbers: dict[str, str]) -> list[tuple[str, str, PairCell]]:
    """Return the most frequently confused pairs of labels, if the matrix is too large to show."""
    if report.confusion is None or len(report.confusion.labels) <= MAX_MATRIX_LABELS:
        return []
    return [
        (expected, answered, PairCell(times, _pair_id((expected, answered), numbers), "rows"))
        for expected, answered, times in report.confused()[:MAX_MATRIX_LABELS]
    ]
