"""Questions with choices: the formats of SWAG, ARC, DREAM and MCTest, and rows of JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from bertkit.data.bad_rows import each_of
from bertkit.data.paths import suffix
from bertkit.data.readers import json_object, numbered, read_text
from bertkit.data.tables import rows
from bertkit.errors import DataError, did_you_mean

LETTERS, NUMBERS = "ABCDE", "12345"
"""How ARC names its choices."""

ANSWER_NAMES = ("answer", "answerkey", "label")
"""Last columns by which the first line of an ARC file is known as a header, in small letters."""


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
    """File and line, or file and id, for messages."""
    dialogue: int | None = field(default=None, repr=False)
    """Its number in the file, where texts are turns of dialogues up to some place."""


def read_choices(path: Path, labelled: bool) -> tuple[list[ChoiceQuestion], str]:
    """The questions of a file, and a sentence on how it was read.

    Raises: DataError naming file and line, or file and question.
    """
    match suffix(path):
        case ".csv" | ".tsv":
            questions, said = _table(path, labelled)
        case ".json":
            questions, said = list(_dream(path, labelled)), "DREAM (dialogues with questions)"
        case ".jsonl":
            questions, said = _json_rows(path, labelled), "rows of question and choices"
        case _:
            raise DataError(
                f"{path}: questions are read from .csv (SWAG, ARC), .json (DREAM) and .jsonl "
                "files, also .gz"
            )
    if not questions:
        raise DataError(f"{path}: no question in it that can be answered")
    sizes = {len(question.choices) for question in questions}
    most = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{max(sizes)}"
    return questions, f"{path}: {said}; {len(questions):,} questions of {most} choices"


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


def json_rows(path: Path, row: type[R]) -> list[tuple[str, R]]:
    """The rows of a .jsonl file, with "file:line". Raises: DataError for those of another form."""

    def read(numbered_line: tuple[int, str]) -> tuple[str, R]:
        number, line = numbered_line
        where = f"{path}:{number}"
        try:
            return where, msgspec.convert(json_object(line.encode(), where), row)
        except msgspec.ValidationError as error:
            raise DataError(f"{where}: {error}") from None

    return each_of(read, numbered(path))


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


def _json_rows(path: Path, labelled: bool) -> list[ChoiceQuestion]:
    def question(placed: tuple[str, _Row]) -> ChoiceQuestion:
        where, row = placed
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

    return each_of(question, json_rows(path, _Row))


class _Question(msgspec.Struct, frozen=True):
    question: str
    choice: tuple[str, ...]
    answer: str | None = None


def _dream(path: Path, labelled: bool) -> Iterator[ChoiceQuestion]:
    kind = list[tuple[list[str], list[_Question], str]]
    try:
        dialogues = msgspec.json.decode(read_text(path), type=kind)
    except msgspec.DecodeError as error:
        raise DataError(
            f"{path}: not DREAM's JSON, a list of [turns, questions, id] ({error})"
        ) from None
    for turns, questions, name in dialogues:
        for question in questions:
            where = f"{path}: {name}"
            if not question.question.strip():
                raise DataError(f"{where}: a question is empty; give one or remove it")
            answer = None
            if labelled:
                if question.answer is None:
                    raise DataError(f"{where}: {question.question!r} has no answer; give one")
                answer = place_of(question.answer, question.choice, where)
            text = "\n".join(turns)
            yield checked(ChoiceQuestion(text, question.choice, answer, question.question, where))


def _table(path: Path, labelled: bool) -> tuple[list[ChoiceQuestion], str]:
    """SWAG, known by its columns ending0 and ending1, MCTest by how many it has; else ARC."""
    table = rows(path, header=False)  # SWAG's first column has no name: it is no usual header
    lines = [
        (f"{path}:{line}", list(row.values()))
        for line, row in zip(table.lines, table.rows, strict=True)
    ]
    names = lines[0][1]
    if len(names) == MCTEST:
        return list(_mctest(path, lines, labelled)), "MCTest (stories with four questions)"
    if set(names) >= SWAG:
        return _swag(lines, labelled), "SWAG (sent1, sent2 and endings)"
    if names[-1].strip().lower() in ANSWER_NAMES:
        lines = lines[1:]
    return _arc(path, lines, labelled)


SWAG = frozenset({"ending0", "ending1"})
"""Columns by which a SWAG file is known."""

MCTEST = 23
"""Columns of a story: its name, who wrote it, its text, and four times a question with choices."""


def _mctest(
    path: Path, lines: Sequence[tuple[str, list[str]]], labelled: bool
) -> Iterator[ChoiceQuestion]:
    """Each question of each story; the right choices are letters in a file beside, .ans."""
    answers: list[list[str]] = [[""] * 4] * len(lines)
    if labelled:
        beside = path.with_suffix(".ans")
        answers = [line.split() for _, line in numbered(beside)]
        if len(answers) != len(lines) or any(
            len(four) != 4 or not set(four) <= set("ABCD") for four in answers
        ):
            raise DataError(
                f"{beside}: not the answers of {len(lines)} stories; each line has four letters, A "
                "to D"
            )
    for (where, cells), four in zip(lines, answers, strict=True):
        text = cells[2].replace("\\newline", "\n").replace("\\tab", "\t")
        for place, letter in enumerate(four):
            stem, *choices = cells[3 + 5 * place : 8 + 5 * place]
            stem = re.sub(r"^(one|multiple): ", "", stem)  # how many sentences it takes
            answer = "ABCD".index(letter) if labelled else None
            yield checked(ChoiceQuestion(text, tuple(choices), answer, stem, where))


def _swag(lines: Sequence[tuple[str, list[str]]], labelled: bool) -> list[ChoiceQuestion]:
    first, names = lines[0]
    missing = {"sent1", "sent2", "label"} - ({"label"} if not labelled else set()) - set(names)
    if missing:
        raise DataError(f"{first}: no column {min(missing)!r}; {did_you_mean(min(missing), names)}")
    endings = [name for name in names if name.startswith("ending")]

    def question(line: tuple[str, list[str]]) -> ChoiceQuestion:
        where, cells = line
        row = dict(zip(names, cells, strict=True))
        choices = tuple(row[name] for name in endings)
        answer = None
        if labelled:
            if not row["label"].strip().isdecimal():
                raise DataError(f"{where}: label {row['label']!r} is not the number of an ending")
            answer = _place(int(row["label"]), choices, where)
        return checked(ChoiceQuestion(row["sent1"], choices, answer, row["sent2"].strip(), where))

    return each_of(question, lines[1:])


def _arc(
    path: Path, lines: Sequence[tuple[str, list[str]]], labelled: bool
) -> tuple[list[ChoiceQuestion], str]:
    """Question, choices, letter of the answer. A question may leave the last choices empty.

    Published files have lost some choices, and with them the answers to their questions: such
    questions teach nothing, and are left out.
    """
    answers = {name: place for marks in (LETTERS, NUMBERS) for place, name in enumerate(marks)}
    marked = labelled or all(cells[-1].strip() in answers for _, cells in lines)
    questions, lost = [], 0
    for where, cells in lines:
        if len(cells) == 1:
            raise DataError(f"{where}: one column; write a question, choices, and a letter")
        question, *choices = cells[:-1] if marked else cells
        while choices and not choices[-1].strip():
            choices.pop()
        answer = answers.get(cells[-1].strip()) if labelled else None
        if labelled and answer is None:
            raise DataError(
                f"{where}: the last column holds {cells[-1][:40]!r}, not the letter of an answer "
                "(A to E); SWAG files name their columns sent1, sent2, ending0, ... in a first line"
            )
        if answer is not None and answer >= len(choices):
            lost += 1
            continue
        questions.append(checked(ChoiceQuestion(question, tuple(choices), answer, where=where)))
    said = "ARC (question, choices, letter of the answer)"
    return questions, said + (
        f"; {lost:,} left out, whose right choice is not there" if lost else ""
    )
