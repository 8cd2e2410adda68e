"""The worst answers, to be read: `errors.jsonl` for tools, `errors.html` for people."""

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
from bertkit.view.page import ERRORS, render

JSONL, HTML = "errors.jsonl", "errors.html"
SHOWN_ERRORS = 100
"""Errors listed on the page at first; the file of rows has all."""
OF_A_PAIR = 20
"""Errors of each pair of labels that the page has beside these, for those who choose the pair."""
MAX_ERRORS = 1000
"""Errors on the page in all."""
MAX_MATRIX_LABELS = 40
"""Labels of a confusion matrix that is shown whole; of more, the pairs that are confused."""


class Mistake(NamedTuple):
    """An answer that is wrong in some way, and the pairs of labels that differ in it."""

    where: str
    record: ErrorRecord
    pairs: Sequence[LabelPair]


class MistakeRow(NamedTuple):
    """A mistake on the page; `pairs` are numbers of labels, such as "0-2 1-": the second of a pair
    is what was answered, and one that is missing is no label.
    """

    where: str
    record: ErrorRecord
    pairs: str
    listed: bool
    """Whether it is listed before a pair is chosen."""


class PairCell(NamedTuple):
    """How often a pair of labels occurs; `pair` is that of rows, "" where nothing is to be seen."""

    times: int
    pair: str
    label: str = ""
    """For screen readers."""


def write_mistakes(
    folder: Path,
    task: Task[E, A],
    answers: Sequence[A],
    examples: Sequence[E],
    report: LabelReport | None = None,
) -> None:
    """List the answers that are wrong in any way, the worst first, with their place in the file.

    With the report of labels the page has it, too, and its figures choose what is listed.
    """
    labeled = task if report and isinstance(task, Labeled) else None
    wrong = []
    for answer, example in zip(answers, examples, strict=True):
        record = task.error_record(answer, example)
        if record.severity > 0:
            pairs = labeled.label_pairs(answer, example) if labeled else ()
            differ = [pair for pair in pairs if pair[0] != pair[1]]
            wrong.append(Mistake(example.where, record, differ))
    wrong.sort(key=lambda mistake: -mistake.record.severity)
    lines = [
        json.dumps({"where": one.where, **asdict(one.record)}, ensure_ascii=False) + "\n"
        for one in wrong
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JSONL, "".join(lines))
    numbers = {label: str(number) for number, label in enumerate(report.labels if report else ())}
    page = render(
        "errors.html",
        modules=ERRORS if numbers else (),
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
    """The worst, and of each pair of labels some more."""
    seen: Counter[LabelPair] = Counter()
    count = 0
    for place, mistake in enumerate(wrong):
        listed = place < SHOWN_ERRORS
        if count < MAX_ERRORS and (listed or any(seen[pair] < OF_A_PAIR for pair in mistake.pairs)):
            pairs = " ".join(dict.fromkeys(_named(pair, numbers) for pair in mistake.pairs))
            yield MistakeRow(Path(mistake.where).name, mistake.record, pairs, listed)
            count += 1
            seen.update(set(mistake.pairs))


def _named(pair: LabelPair, numbers: dict[str, str]) -> str:
    return "-".join("" if label is None else numbers[label] for label in pair)


def _labels(report: LabelReport | None, numbers: dict[str, str]) -> list[tuple[object, ...]]:
    """A row for each label: its name, scores, and how often it was missed and wrongly given."""
    rows: list[tuple[object, ...]] = []
    for label, one in report.labels.items() if report else ():
        right = round(one.recall * one.support)
        missed, given = one.support - right, one.answered - right
        rows.append(
            (
                label,
                *(one.precision, one.recall, one.f1, one.support),
                PairCell(missed, f"{numbers[label]}-*" if missed else "", f"{label} missed"),
                PairCell(given, f"*-{numbers[label]}" if given else "", f"{label} wrongly given"),
            )
        )
    return rows


def _matrix(
    report: LabelReport | None, numbers: dict[str, str]
) -> tuple[list[str], list[tuple[str, list[PairCell]]]] | None:
    """The names of the columns, and a row for each expected label; None where it is too wide."""
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
                _named((expected, answered), numbers) if times and expected != answered else "",
                f"{title} answered as {given}",
            )
            for answered, given, times in zip(names, shown, row, strict=True)
        ]
        rows.append((title, cells))
    return shown, rows


def _confused(report: LabelReport, numbers: dict[str, str]) -> list[tuple[str, str, PairCell]]:
    """The pairs that are confused most, where the matrix is too wide to be shown."""
    if report.confusion is None or len(report.confusion.labels) <= MAX_MATRIX_LABELS:
        return []
    return [
        (expected, answered, PairCell(times, _named((expected, answered), numbers), "rows"))
        for expected, answered, times in report.confused()[:MAX_MATRIX_LABELS]
    ]
