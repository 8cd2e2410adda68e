"""The right one of several choices: one score each. Devlin et al. 2019, section 4.4 (SWAG)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.data.readers import json_object, numbered, read_text, suffix
from bertkit.data.tables import rows
from bertkit.errors import ConfigError, DataError, did_you_mean
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reading, Task
from bertkit.text.encoding import Encoding
from bertkit.text.long import Long
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

LETTERS, NUMBERS = "ABCDE", "12345"
"""How ARC names its choices."""

ANSWER_NAMES = ("answer", "answerkey", "label")
"""Last columns by which the first line of an ARC file is known as a header, in small letters."""


@dataclass(frozen=True)
class Example:
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


class ChoiceAnswer(msgspec.Struct, frozen=True):
    """The likeliest choice, its probability, and those of all choices in their order."""

    index: int
    choice: str
    score: float
    scores: list[float]
    truncated: bool = False


A = TypeVar("A", bound=msgspec.Struct)


class ChoiceTask(Task[Example, A], Generic[A]):
    """What tasks share that score the choices of a text one by one; a softmax is over those."""

    batching = "example"
    cut_text: ClassVar[Literal["start", "end"]] = "end"
    """Where a text too long for the model loses tokens."""

    @property
    def head(self) -> str:
        return "choose"

    @classmethod
    def example(cls, text: str, others: Sequence[str]) -> Example:
        if len(others) < 2:
            raise DataError(f"{text[:40]!r}: give two choices or more (--pair for each)")
        return checked(Example(text, tuple(others)))

    def check(self, examples: Sequence[Example]) -> None:
        for example in examples:
            if example.answer is None:
                raise DataError(f"{example.where}: no right choice is marked; mark one")

    def features(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """One for each choice, in order. What is too long loses tokens of the text; of the choice
        (at its end) only when that alone fills the model."""
        pairs = [(e.text, f"{e.stem} {c}" if e.stem else c) for e in examples for c in e.choices]
        texts, choices = [text for text, _ in pairs], [choice for _, choice in pairs]
        encodings = iter(tokenizer.encode_batch(texts, choices, max_length=NO_LIMIT))
        found = []
        for number, example in enumerate(examples):
            for place in range(len(example.choices)):
                encoding = next(encodings)
                if len(encoding) > length:
                    if long == "error":
                        raise DataError(
                            f"{example.where}: {len(encoding)} tokens with choice {place + 1}, and "
                            f"the model reads {length}; shorten it or cut it (--long truncate)"
                        )
                    encoding = _cut(encoding, length, self.cut_text)
                right = place == example.answer if labelled else None
                found.append(Feature(encoding, number, target=right))
        return found

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """For each example of the batch, which of the batch's sequences is its right choice."""
        right = [(f.example, place) for place, f in enumerate(features) if f.target]
        return torch.tensor([place for _, place in sorted(right)])

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Cross-entropy of the right choice among those of its example, averaged over the step."""
        assert batch.example is not None
        scores, targets = outputs.squeeze(1), batch.targets[self.head]
        examples = torch.arange(len(targets), device=scores.device)[:, None]
        logits = torch.where(batch.example == examples, scores, -torch.inf)  # (examples, S)
        loss = F.cross_entropy(logits, targets, reduction="sum") / totals[self.head]
        correct = (logits.argmax(-1) == targets).sum()
        return Loss(loss, {self.head: loss.detach()}, {self.head: correct})

    def probabilities(self, item: ExampleOutput[Example]) -> NDArray[np.float64]:
        """Of an example's choices."""
        scores = np.concatenate(item.outputs)[:, 0].astype(np.float64)
        likely = np.exp(scores - scores.max())
        probabilities: NDArray[np.float64] = likely / likely.sum()
        return probabilities


class Choose(ChoiceTask[ChoiceAnswer]):
    """The right one of several choices: a score each, and a softmax over them."""

    name = "choose"
    metric = "accuracy"
    Answer = ChoiceAnswer
    route = "/choose"
    fields = ("text", "choices")
    example_item = ("He opened the door.", ("It rang.", "He left."))

    @classmethod
    def read(cls, path: Path, reading: Reading, *, labelled: bool) -> tuple[list[Example], str]:
        """SWAG's .csv, ARC's .csv, DREAM's .json, MCTest's .tsv with the .ans beside it, or .jsonl
        rows {question, choices, label}.

        A .jsonl row may have a context besides, or instead of the question; its label is the
        place of the right choice, from 0, or its text.
        """
        refuse_columns(reading, cls.name)
        match suffix(path):
            case ".csv" | ".tsv":
                found, said = _table(path, labelled)
            case ".json":
                found, said = list(_dream(path, labelled)), "DREAM (dialogues with questions)"
            case ".jsonl":
                found, said = list(_json_rows(path, labelled)), "rows of question and choices"
            case _:
                raise DataError(
                    f"{path}: questions are read from .csv (SWAG, ARC), .json (DREAM) and .jsonl "
                    "files, also .gz"
                )
        if not found:
            raise DataError(f"{path}: no question in it that can be answered")
        sizes = {len(example.choices) for example in found}
        most = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{max(sizes)}"
        return found, f"{path}: {said}; {len(found):,} questions of {most} choices"

    def answers(
        self, outputs: Sequence[ExampleOutput[Example]], head: nn.Module
    ) -> list[ChoiceAnswer]:
        answers = []
        for item in outputs:
            scores = self.probabilities(item).tolist()
            best = scores.index(max(scores))
            text = item.example.choices[best]
            answers.append(ChoiceAnswer(best, text, scores[best], scores, item.truncated))
        return answers

    def score(
        self, answers: Sequence[ChoiceAnswer], examples: Sequence[Example]
    ) -> dict[str, float]:
        """accuracy."""
        right = [a.index == e.answer for a, e in zip(answers, examples, strict=True)]
        return {"accuracy": float(np.mean(right))}

    def error_record(self, answer: ChoiceAnswer, example: Example) -> ErrorRecord:
        assert example.answer is not None
        return ErrorRecord(
            f"{example.text} {example.stem}".strip(),
            example.choices[example.answer],
            f"{answer.choice} ({answer.score:.2f})",
            0.0 if answer.index == example.answer else 1.0 - answer.scores[example.answer],
        )


def _cut(encoding: Encoding, length: int, where: Literal["start", "end"]) -> Encoding:
    """The encoding of a pair with the first text cut until it fits, then the end of the second."""
    first, second = encoding.sequence.count(0), encoding.sequence.count(1)
    room = length - len(encoding) + first + second
    if room < 1:
        raise DataError(f"length: {length} tokens have no room for text beside the special ones")
    right = min(second, room)
    left = min(first, room - right)
    kept = (0, left) if where == "end" else (first - left, first)
    return encoding.cut({0: kept, 1: (0, right)}, truncated=True)


# ---- readers


def checked(example: Example) -> Example:
    """The example itself.

    Raises: DataError naming its place, for an empty text or choice, fewer than two choices, or a
    right choice that stands there twice.
    """
    where, choices = example.where, example.choices
    if not example.text.strip():
        raise DataError(f"{where}: the text is empty; give one or remove the question")
    if len(choices) < 2:
        number = "no choices" if not choices else "only one choice"
        raise DataError(f"{where}: {number}; give two or more")
    for place, choice in enumerate(choices, 1):
        if not choice.strip():
            raise DataError(f"{where}: choice {place} of {len(choices)} is empty; give it a text")
    if example.answer is not None and choices.count(choices[example.answer]) > 1:
        raise DataError(
            f"{where}: the right choice, {choices[example.answer]!r}, stands there twice; keep one"
        )
    return example


def refuse_columns(reading: Reading, task: str) -> None:
    """Raises: ConfigError when columns are named, which these formats know themselves."""
    for name in msgspec.structs.asdict(reading):
        if getattr(reading, name) is not None:
            raise ConfigError(f"{name}: the files of {task} need none; leave it out")


R = TypeVar("R")


def json_rows(path: Path, row: type[R]) -> Iterator[tuple[str, R]]:
    """The rows of a .jsonl file, with "file:line". Raises: DataError for one of another form."""
    for number, line in numbered(path):
        where = f"{path}:{number}"
        try:
            yield where, msgspec.convert(json_object(line.encode(), where), row)
        except msgspec.ValidationError as error:
            raise DataError(f"{where}: {error}") from None


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


def _json_rows(path: Path, labelled: bool) -> Iterator[Example]:
    for where, row in json_rows(path, _Row):
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
        yield checked(Example(texts[0], row.choices, answer, "".join(texts[1:]), where))


class _Question(msgspec.Struct, frozen=True):
    question: str
    choice: tuple[str, ...]
    answer: str | None = None


def _dream(path: Path, labelled: bool) -> Iterator[Example]:
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
            yield checked(Example(text, question.choice, answer, question.question, where))


def _table(path: Path, labelled: bool) -> tuple[list[Example], str]:
    """SWAG, known by its columns ending0 and ending1, MCTest by how many it has; else ARC."""
    table = rows(path, header=False)  # SWAG's first column has no name: it is no usual header
    lines = [
        (f"{path}:{line}", list(row.values()))
        for line, row in zip(table.lines, table.rows, strict=True)
    ]
    names = lines[0][1]
    if len(names) == MCTEST:
        return list(_mctest(path, lines, labelled)), "MCTest (stories with four questions)"
    if {"ending0", "ending1"} <= set(names):
        return list(_swag(lines, labelled)), "SWAG (sent1, sent2 and endings)"
    if names[-1].strip().lower() in ANSWER_NAMES:
        lines = lines[1:]
    return _arc(path, lines, labelled)


MCTEST = 23
"""Columns of a story: its name, who wrote it, its text, and four times a question with choices."""


def _mctest(
    path: Path, lines: Sequence[tuple[str, list[str]]], labelled: bool
) -> Iterator[Example]:
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
            yield checked(Example(text, tuple(choices), answer, stem, where))


def _swag(lines: Sequence[tuple[str, list[str]]], labelled: bool) -> Iterator[Example]:
    first, names = lines[0]
    missing = {"sent1", "sent2", "label"} - ({"label"} if not labelled else set()) - set(names)
    if missing:
        raise DataError(f"{first}: no column {min(missing)!r}; {did_you_mean(min(missing), names)}")
    endings = [name for name in names if name.startswith("ending")]
    for where, cells in lines[1:]:
        row = dict(zip(names, cells, strict=True))
        choices = tuple(row[name] for name in endings)
        answer = None
        if labelled:
            if not row["label"].strip().isdecimal():
                raise DataError(f"{where}: label {row['label']!r} is not the number of an ending")
            answer = _place(int(row["label"]), choices, where)
        yield checked(Example(row["sent1"], choices, answer, row["sent2"].strip(), where))


def _arc(
    path: Path, lines: Sequence[tuple[str, list[str]]], labelled: bool
) -> tuple[list[Example], str]:
    """Question, choices, letter of the answer. A question may leave the last choices empty.

    Published files have lost some choices, and with them the answers to their questions: such
    questions teach nothing, and are left out.
    """
    answers = {name: place for marks in (LETTERS, NUMBERS) for place, name in enumerate(marks)}
    marked = labelled or all(cells[-1].strip() in answers for _, cells in lines)
    found, lost = [], 0
    for where, cells in lines:
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
        found.append(checked(Example(question, tuple(choices), answer, where=where)))
    said = "ARC (question, choices, letter of the answer)"
    return found, said + (f"; {lost:,} left out, whose right choice is not there" if lost else "")
