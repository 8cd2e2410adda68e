"""Functions that read multiple-choice questions from .jsonl rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from bertkit.data.row_readers import Source, has_records, read_records
from bertkit.errors import DataError, did_you_mean


@dataclass(frozen=True)
class ChoiceQuestion:
    """Multiple-choice question.

    For each choice, the input of the model is `text [SEP] stem choice`.

    Attributes:
        text: The question, or the text that it is about.
        choices: The choices.
        answer: Index of the correct choice, or None if it is unknown.
        stem: A question about the text, or the beginning of every choice. May be empty.
        where: File and line, for error messages.
        dialogue: Index of the dialogue in the file, if the text is the beginning of a dialogue.
    """

    text: str
    choices: tuple[str, ...]
    answer: int | None = None
    stem: str = ""
    where: str = "a question"
    dialogue: int | None = field(default=None, repr=False)


def read_choices(source: Source, labeled: bool) -> tuple[list[ChoiceQuestion], str]:
    """Read multiple-choice questions from a .jsonl file or from rows.

    Args:
        source: The file or rows.
        labeled: Whether every row must have a label.

    Returns:
        The questions, and a one-line summary of them.

    Raises:
        DataError: If a row is invalid. The message names the file and the line.
    """
    if not has_records(source):
        raise DataError(f"{source}: unknown file type; pass a .jsonl file, or .jsonl.gz")
    questions = _read_rows(source, labeled)
    sizes = {len(question.choices) for question in questions}
    most = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{max(sizes)}"
    return questions, f"{source}: {len(questions):,} questions of {most} choices"


def is_right(question: ChoiceQuestion, index: int) -> bool:
    """Return whether a choice equals the correct choice, ignoring case and white space."""
    assert question.answer is not None
    right, choice = (question.choices[i].casefold().split() for i in (question.answer, index))
    return choice == right


def checked(question: ChoiceQuestion) -> ChoiceQuestion:
    """Check a question and return it.

    Raises:
        DataError: If the text or a choice is empty, if there are fewer than two choices, or if the
            correct choice occurs twice.
    """
    location, choices = question.where, question.choices
    if not question.text.strip():
        raise DataError(f"{location}: the text is empty; add a text or remove the question")
    if len(choices) < 2:
        number = "no choices" if not choices else "only one choice"
        raise DataError(f"{location}: {number}; at least two choices are required")
    for i, choice in enumerate(choices, 1):
        if not choice.strip():
            raise DataError(f"{location}: choice {i} of {len(choices)} is empty; add a text")
    if question.answer is not None and choices.count(choices[question.answer]) > 1:
        raise DataError(
            f"{location}: the correct choice {choices[question.answer]!r} occurs twice; remove one"
        )
    return question


R = TypeVar("R")
S = TypeVar("S")


def read_rows(read: Callable[[str, S], R], kind: type[S], source: Source) -> list[R]:
    """Convert each row to a type, call a function for it, and return the results.

    Args:
        read: Function that takes the location (file and line) of a row and the converted row.
        kind: Type to which each row is converted.
        source: The file or rows.

    Raises:
        DataError: If a row cannot be converted to the type, or `read` raises a DataError.
    """

    def convert(location: str, fields: dict[str, Any]) -> R:
        try:
            row = msgspec.convert(fields, kind)
        except msgspec.ValidationError as error:
            raise DataError(f"{location}: {error}") from None
        return read(location, row)

    return read_records(convert, source)


def choice_index(text: str, choices: Sequence[str], location: str) -> int:
    """Return the index of the choice with the given text.

    Raises:
        DataError: If no choice has this text.
    """
    if text not in choices:
        raise DataError(
            f"{location}: {text!r} is not among the choices; {did_you_mean(text, choices)}"
        )
    return choices.index(text)


def _check_number(number: int, choices: Sequence[str], location: str) -> int:
    """Return the number if it is the index of a choice, or raise a DataError."""
    if not 0 <= number < len(choices):
        raise DataError(f"{location}: label {number} is not the index of a choice; count from 0")
    return number


class _Row(msgspec.Struct, frozen=True):
    choices: tuple[str, ...]
    question: str | None = None
    context: str | None = None
    label: int | str | None = None


def _read_rows(source: Source, labeled: bool) -> list[ChoiceQuestion]:
    def question(location: str, row: _Row) -> ChoiceQuestion:
        texts = [text for text in (row.context, row.question) if text is not None]
        if not all(text.strip() for text in texts) or not texts:
            raise DataError(f"{location}: the question or context is empty or missing; add a text")
        answer = None
        if labeled and row.label is None:
            raise DataError(f"{location}: no label; add the correct choice or its index, from 0")
        if labeled and isinstance(row.label, str):
            answer = choice_index(row.label, row.choices, location)
        elif labeled and isinstance(row.label, int):
            answer = _check_number(row.label, row.choices, location)
        return checked(ChoiceQuestion(texts[0], row.choices, answer, "".join(texts[1:]), location))

    return read_rows(question, _Row, source)
