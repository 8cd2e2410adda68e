"""Functions that read questions for extractive question answering.

Supported files are SQuAD 1.1 and 2.0 (`.json`), and `.jsonl` rows. Both may be compressed (`.gz`).
Invalid input raises a DataError that names the file and the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from bertkit.data.document_readers import read_text
from bertkit.data.paths import suffix
from bertkit.data.row_readers import Source, has_records, read_records
from bertkit.errors import DataError


@dataclass(frozen=True)
class Question:
    """Question about a context, with its answers in the context.

    Attributes:
        question: The question.
        context: The text that may contain the answer.
        answers: Correct answers as pairs (text, start). `start` is the index of the answer's first
            character in the context. A model is trained to predict the first answer. In the
            evaluation, any of the answers is correct. The list is empty if the question cannot be
            answered from the context.
        id: Id of the question.
        where: File and line, or file and id, for error messages.
    """

    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    id: str = ""
    where: str = "a question"

    @property
    def answerable(self) -> bool:
        return bool(self.answers)


class _SquadAnswer(msgspec.Struct):
    text: str
    start: Annotated[int, Meta(ge=0)] = msgspec.field(name="answer_start")


class _SquadQuestion(msgspec.Struct):
    id: str
    question: str
    answers: list[_SquadAnswer] | None = None
    is_impossible: bool | None = None


class _SquadParagraph(msgspec.Struct):
    context: str
    qas: list[msgspec.Raw]


class _SquadArticle(msgspec.Struct):
    paragraphs: list[msgspec.Raw]


class _Squad(msgspec.Struct):
    data: list[msgspec.Raw]


class _RowAnswers(msgspec.Struct):
    """Answers in a row, in the format of the Hugging Face dataset `squad`."""

    text: list[str]
    start: list[Annotated[int, Meta(ge=0)]] = msgspec.field(name="answer_start")


class _Row(msgspec.Struct):
    question: str
    context: str
    answers: _RowAnswers | None = None
    id: str | int | None = None


S = TypeVar("S", bound=msgspec.Struct)


def _decode(raw: str | msgspec.Raw | dict[str, Any], kind: type[S], file: str, path: str = "") -> S:
    """Convert JSON to the type `kind`.

    Raises:
        DataError: If the JSON is invalid. The message contains the path of the invalid value.
    """
    try:
        if isinstance(raw, dict):
            return msgspec.convert(raw, kind)
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        text, _, inner = str(error).partition(" - at ")
        location = (path + inner.strip("`$")).lstrip(".") or "top level"
        raise DataError(f"{file}: {location}: {text[0].lower()}{text[1:]}; fix it") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{file}: invalid JSON ({error}); fix or remove the file") from None


def _squad(file: Path, labeled: bool) -> Iterator[Question]:
    """Yield the questions in a file of SQuAD 1.1 or 2.0.

    Each level of the file (data, paragraphs, qas) is decoded separately, so that error messages can
    contain the path of an invalid value.
    """
    text = read_text(file)
    for i, article in enumerate(_decode(text, _Squad, str(file)).data):
        path = f"data[{i}]"
        paragraphs = _decode(article, _SquadArticle, str(file), path).paragraphs
        for j, raw in enumerate(paragraphs):
            inner = f"{path}.paragraphs[{j}]"
            paragraph = _decode(raw, _SquadParagraph, str(file), inner)
            for k, item in enumerate(paragraph.qas):
                question = _decode(item, _SquadQuestion, str(file), f"{inner}.qas[{k}]")
                location = f"{file}: {question.id}"
                answers = question.answers
                if answers is None and question.is_impossible:
                    answers = []
                if labeled and question.is_impossible == bool(answers):
                    value = str(question.is_impossible).lower()
                    raise DataError(
                        f"{location}: is_impossible is {value}, but the question has "
                        f"{len(answers or ())} answers; fix is_impossible or the answers"
                    )
                yield Question(
                    question.question,
                    paragraph.context,
                    _checked(answers, paragraph.context, location) if labeled else (),
                    question.id,
                    location,
                )


def _read_rows(source: Source, labeled: bool) -> list[Question]:
    """Read questions from rows in the format of the Hugging Face dataset `squad`.

    A row has the form {"question", "context", "answers": {"text": [...], "answer_start": [...]}}
    and can also contain "id".
    """

    def question(location: str, fields: dict[str, Any]) -> Question:
        row = _decode(fields, _Row, location)
        answers = None
        if row.answers is not None:
            texts, starts = row.answers.text, row.answers.start
            if len(texts) != len(starts):
                raise DataError(
                    f"{location}: answers has {len(texts)} values in text and {len(starts)} in "
                    "answer_start; write one answer_start for each text"
                )
            answers = list(map(_SquadAnswer, texts, starts))
        return Question(
            row.question,
            row.context,
            _checked(answers, row.context, location) if labeled else (),
            location if row.id is None else str(row.id),
            location,
        )

    return read_records(question, source)


def _checked(
    answers: Sequence[_SquadAnswer] | None, context: str, location: str
) -> tuple[tuple[str, int], ...]:
    """Convert answers to pairs (text, start), and check that they match the context."""
    if answers is None:
        raise DataError(
            f"{location}: answers are missing; use empty lists if the context contains no answer"
        )
    spans = tuple((answer.text, answer.start) for answer in answers)
    for text, start in spans:
        actual = context[start : start + len(text)]
        if not text.strip():
            raise DataError(
                f"{location}: an answer is empty; use empty lists if the context contains no answer"
            )
        if actual != text:
            raise DataError(
                f"{location}: expected the answer {text!r} at character {start} of the context, "
                f"got {actual!r}; fix answer_start"
            )
    return spans


def read_questions(source: Source, *, labeled: bool) -> tuple[list[Question], str]:
    """Read questions with their contexts and answers from a file or from rows.

    Args:
        source: The file or rows.
        labeled: Whether every question must have answers, which may be empty lists.

    Returns:
        The questions, and a one-line summary of them.

    Raises:
        DataError: If a question is invalid. The message names the file and the question.
    """
    if has_records(source):
        questions = _read_rows(source, labeled)
    elif isinstance(source, Path) and suffix(source) == ".json":
        questions = list(_squad(source, labeled))
    else:
        raise DataError(
            f"{source}: unknown file type; pass a .json (SQuAD) or .jsonl file, or one of these "
            "with .gz"
        )
    if not questions:
        raise DataError(f"{source}: the file contains no questions")
    seen: dict[str, str] = {}
    for question in questions:
        if not (question.question.strip() and question.context.strip()):
            empty = "context" if question.question.strip() else "question"
            raise DataError(f"{question.where}: the {empty} is empty; remove the question")
        if question.id in seen:
            raise DataError(
                f"{question.where}: duplicate id {question.id!r} (used at {seen[question.id]}); "
                "use a unique id for each question"
            )
        seen[question.id] = question.where
    summary = f"{source}: {len(questions):,} questions"
    if labeled:
        without = sum(not question.answerable for question in questions)
        summary += f", {without:,} of them without an answer"
    return questions, summary
