"""Reader of multiple-choice questions from .jsonl rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from bertkit.data.row_readers import Source, each_record, has_records
from bertkit.errors import DataError, did_you_mean


@dataclass(frozen=True)
class ChoiceQuestion:
    """A text, what may go with it, and the place of the right choice, None where unknown.

    The model reads `text [SEP] stem choice`: the stem is a question about the text, or how every
    choice begins.
    """

    text: str
    choices: tuple[str, ...]
    answer: int | None = None
    stem: str = ""
    where: str = "a question"
    """File and line, for messages."""
    dialogue: int | None = field(default=None, repr=False)
    """Its number in the file, where texts are turns of dialogues up to some place."""


def read_choices(source: Source, labelled: bool) -> tuple[list[ChoiceQuestion], str]:
    """Return the questions of a .jsonl file, or of rows, and a one-line summary.

    Raises: DataError naming file and line.
    """
    if not has_records(source):
        raise DataError(f"{source}: unknown file type; pass a .jsonl file, or .jsonl.gz")
    questions = _read_rows(source, labelled)
    sizes = {len(question.choices) for question in questions}
    most = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{max(sizes)}"
    return questions, f"{source}: {len(questions):,} questions of {most} choices"


def is_right(question: ChoiceQuestion, index: int) -> bool:
    """Return whether a choice has the text of the right choice, apart from case and white space."""
    assert question.answer is not None
    right, choice = (question.choices[i].casefold().split() for i in (question.answer, index))
    return choice == right


def checked(question: ChoiceQuestion) -> ChoiceQuestion:
    """The question itself.

    Raises: DataError naming its place, for an empty text or choice, fewer than two choices, or a
    right choice that stands there twice.
    """
    where, choices = question.where, question.choices
    if not question.text.strip():
        raise DataError(f"{where}: the text is empty; give one or remove the question")
    if len(choices) < 2:
        number = "no choices" if not choices else "only one choice"
        raise DataError(f"{where}: {number}; give two or more")
    for place, choice in enumerate(choices, 1):
        if not choice.strip():
            raise DataError(f"{where}: choice {place} of {len(choices)} is empty; give it a text")
    if question.answer is not None and choices.count(choices[question.answer]) > 1:
        raise DataError(
            f"{where}: the right choice, {choices[question.answer]!r}, stands there twice; keep one"
        )
    return question


R = TypeVar("R")
S = TypeVar("S")


def each_row(read: Callable[[str, S], R], kind: type[S], source: Source) -> list[R]:
    """Return the results of `read(where, row)` for rows of one type.

    Raises:
        DataError: If a row has another type, or cannot be read.
    """

    def convert(where: str, fields: dict[str, Any]) -> R:
        try:
            row = msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:
            raise DataError(f"{where}: {error}") from None
        return read(where, row)

    return each_record(convert, source)


def place_of(text: str, choices: Sequence[str], where: str) -> int:
    """Where a choice stands among all. Raises: DataError when it does not."""
    if text not in choices:
        raise DataError(
            f"{where}: {text!r} is not among the choices; {did_you_mean(text, choices)}"
        )
    return choices.index(text)


def _place(number: int, choices: Sequence[str], where: str) -> int:
    if not 0 <= number < len(choices):
        raise DataError(
            f"{where}: label {number}, but there are {len(choices)} choices, numbered from 0"
        )
    return number


class _Row(msgspec.Struct, frozen=True):
    choices: tuple[str, ...]
    question: str | None = None
    context: str | None = None
    label: int | str | None = None


def _read_rows(source: Source, labelled: bool) -> list[ChoiceQuestion]:
    def question(where: str, row: _Row) -> ChoiceQuestion:
        texts = [text for text in (row.context, row.question) if text is not None]
        if not all(text.strip() for text in texts) or not texts:
            raise DataError(f"{where}: no question and no context, or an empty one; give a text")
        answer = None
        if labelled and row.label is None:
            raise DataError(f"{where}: no label; give the right choice's place, from 0, or text")
        if labelled and isinstance(row.label, str):
            answer = place_of(row.label, row.choices, where)
        elif labelled and isinstance(row.label, int):
            answer = _place(row.label, row.choices, where)
        return checked(ChoiceQuestion(texts[0], row.choices, answer, "".join(texts[1:]), where))

    return each_row(question, _Row, source)
