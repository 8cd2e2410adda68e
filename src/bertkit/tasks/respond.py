"""The right response to a dialogue among several, read one by one together with its turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from torch import nn

from bertkit import metrics
from bertkit.config import Count, Settings
from bertkit.data.document_readers import read_text
from bertkit.data.multiple_choice import ChoiceQuestion, checked, each_row, is_right, place_of
from bertkit.data.paths import suffix
from bertkit.data.row_readers import Source, has_records
from bertkit.data.shuffling import Purpose, generator
from bertkit.errors import DataError
from bertkit.tasks.capabilities import ChanceLevel
from bertkit.tasks.choose import ChoiceReader, ChoiceTask, refuse_columns
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reading, Serving
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

WRONG_RESPONSES = 9
"""Wrong responses drawn for each right one, where the file names no candidates."""


class RespondOptions(Settings, frozen=True):
    """How much of a dialogue is read, and what is learned from."""

    turns: Count = 4
    """The last turns before the response, which are read."""
    negatives: Annotated[int, Meta(ge=1, le=WRONG_RESPONSES)] = 3
    """Wrong responses that a right one is learned against."""


class ResponseAnswer(msgspec.Struct, frozen=True):
    """The best response, its probability, those of all in their order, and all, best first."""

    best: str
    index: int
    score: float
    scores: list[float]
    order: list[int]
    truncated: bool = False


class ResponseReader(ChoiceReader):
    """Dialogues with candidate responses, from .json or .jsonl files."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[ChoiceQuestion], str]:
        """Read dialogues.

        A .json file contains `[{"dialogue": [[turn, response], ...]}, ...]`. A .jsonl file contains
        rows {context, response, candidates}. A context is a list of turns, or a text with one turn
        per line. The candidates include the response.
        """
        refuse_columns(reading, "respond")
        is_list = isinstance(source, Path) and suffix(source) == ".json"
        if isinstance(source, Path) and is_list:
            pairs, said = list(_dialogues(source)), "dialogues"
        elif has_records(source):
            pairs, said = _rows(source, labelled), "rows of context and response"
        else:
            raise DataError(f"{source}: dialogues are read from .json and .jsonl files, also .gz")
        if not pairs:
            raise DataError(f"{source}: no response in it")
        questions = _examples(pairs, labelled, dialogues=is_list)
        sizes = {len(example.choices) for example in questions}
        most = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{max(sizes)}"
        count = len({pair.dialogue for pair in pairs})
        return (
            questions,
            f"{source}: {count:,} {said}; {len(questions):,} responses, each among {most}",
        )


class Respond(ChoiceTask[ResponseAnswer], ChanceLevel):
    """Response selection: the best candidate, with a cross-encoder.

    An example's text has one turn on each line.

    Where a file names no candidates, nine wrong ones are drawn from its other dialogues: always
    the same, since the draw depends on the file and on the place in it alone.
    """

    name = "respond"
    reader = ResponseReader()
    metric = "mrr"
    score_names = ("recall@1", "mrr")
    Options = RespondOptions
    serving = Serving(
        ResponseAnswer, {"text": "How are you?", "responses": ("Fine, thanks.", "On Mondays.")}
    )
    cut_text = "start"

    def features(
        self,
        examples: Sequence[ChoiceQuestion],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """One for each candidate; with `labelled`, for the right one and the first wrong ones. The
        turns have a [SEP] between them; what is too long loses its oldest tokens.
        """
        between = f" {tokenizer.pieces([tokenizer.sep])[0]} "
        read = []
        for example in examples:
            turns = example.text.splitlines()[-self.options.turns :]
            if labelled:
                example = self._learned(example)
            read.append(replace(example, text=between.join(turns)))
        return super().features(read, tokenizer, length, long=long, labelled=labelled)

    def _learned(self, example: ChoiceQuestion) -> ChoiceQuestion:
        assert example.answer is not None
        right = example.choices[example.answer]
        wrong = [c for place, c in enumerate(example.choices) if place != example.answer]
        return replace(example, choices=(right, *wrong[: self.options.negatives]), answer=0)

    def answers(
        self, outputs: Sequence[ExampleOutput[ChoiceQuestion]], head: nn.Module
    ) -> list[ResponseAnswer]:
        answers = []
        for item in outputs:
            likely = self.probabilities(item)
            order, scores = np.argsort(-likely, kind="stable").tolist(), likely.tolist()
            first = order[0]
            text = item.example.choices[first]
            answers.append(
                ResponseAnswer(text, first, scores[first], scores, order, item.truncated)
            )
        return answers

    def score(
        self, answers: Sequence[ResponseAnswer], examples: Sequence[ChoiceQuestion]
    ) -> dict[str, float]:
        """recall@1, @2, @5 and the mean reciprocal rank, among the fewest candidates there are."""
        ranks = [_rank(a, e) for a, e in zip(answers, examples, strict=True)]
        return metrics.ranking(ranks, of=min(len(e.choices) for e in examples))

    def chance(self, examples: Sequence[ChoiceQuestion]) -> dict[str, float]:
        return {"mrr": float(np.mean([metrics.random_mrr(len(e.choices)) for e in examples]))}

    def error_record(self, answer: ResponseAnswer, example: ChoiceQuestion) -> ErrorRecord:
        assert example.answer is not None
        right = _rank(answer, example) == 1
        return ErrorRecord(
            example.text,
            example.choices[example.answer],
            f"{answer.best} ({answer.score:.2f})",
            0.0 if right else 1.0 - answer.scores[example.answer],
        )


def _rank(answer: ResponseAnswer, example: ChoiceQuestion) -> int:
    """Return the rank of the right response among the distinct candidates, from 1.

    Ties count against it, so that a model gains nothing from equal scores.
    """
    assert example.answer is not None
    least = answer.scores[example.answer]
    better = (i for i, score in enumerate(answer.scores) if score >= least)
    return 1 + sum(not is_right(example, i) for i in better)


# ---- readers


@dataclass(frozen=True)
class _Pair:
    """Turns, the response to them, and all candidates; None where the file does not say."""

    turns: tuple[str, ...]
    response: str | None
    candidates: tuple[str, ...] | None
    dialogue: int
    where: str


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _Dialogue(msgspec.Struct, frozen=True):
    dialogue: list[tuple[str, str]]


def _dialogues(path: Path) -> Iterator[_Pair]:
    try:
        dialogues = msgspec.json.decode(read_text(path), type=list[_Dialogue])
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(
            f'{path}: not a JSON list of {{"dialogue": [[turn, response], ...]}} ({error})'
        ) from None
    for number, row in enumerate(dialogues):
        turns: list[str] = []
        for place, pair in enumerate(row.dialogue, 1):
            turn, response = map(_one_line, pair)
            where = f"{path}: dialogue {number + 1}, pair {place}"
            last = place == len(row.dialogue)
            if not turn or not (response or last):
                raise DataError(f"{where}: a turn is empty; only the last response may be")
            turns.append(turn)
            if response:
                yield _Pair(tuple(turns), response, None, number, where)
                turns.append(response)


class _Row(msgspec.Struct, frozen=True):
    context: str | tuple[str, ...]
    response: str | None = None
    candidates: tuple[str, ...] | None = None


def _rows(source: Source, labelled: bool) -> list[_Pair]:
    numbers = itertools.count()

    def read(where: str, row: _Row) -> _Pair:
        lines = row.context.splitlines() if isinstance(row.context, str) else row.context
        turns = tuple(filter(None, map(_one_line, lines)))
        if not turns:
            raise DataError(f"{where}: the context is empty; give the turns before the response")
        if row.response is None and (labelled or row.candidates is None):
            raise DataError(
                f"{where}: no response; give one" + ("" if labelled else " or candidates")
            )
        if row.response is not None and not row.response.strip():
            raise DataError(f"{where}: the response is empty; give one or remove the row")
        return _Pair(turns, row.response, row.candidates, next(numbers), where)

    return each_row(read, _Row, source)


def _examples(pairs: Sequence[_Pair], labelled: bool, *, dialogues: bool) -> list[ChoiceQuestion]:
    pool = [(pair.response, pair.dialogue) for pair in pairs if pair.response is not None]
    questions = []
    for place, pair in enumerate(pairs):
        text, answer = "\n".join(pair.turns), None
        choices = pair.candidates
        if choices is None:
            assert pair.response is not None
            random = generator(0, 0, place, Purpose.SAMPLE)
            wrong = _draw(random, pool, pair)
            answer = int(random.integers(len(wrong) + 1))
            choices = (*wrong[:answer], pair.response, *wrong[answer:])
        elif labelled:
            assert pair.response is not None
            answer = place_of(pair.response, choices, pair.where)
        example = ChoiceQuestion(
            text,
            choices,
            answer if labelled else None,
            dialogue=pair.dialogue if dialogues else None,
            where=pair.where,
        )
        questions.append(checked(example))
    return questions


def _draw(
    random: np.random.Generator, pool: Sequence[tuple[str, int]], pair: _Pair
) -> tuple[str, ...]:
    """Different responses of other dialogues, nine where there are as many.

    Raises: DataError when there is none.
    """
    wrong: dict[str, None] = {}
    for place in _places(random, len(pool)):
        text, dialogue = pool[place]
        if dialogue != pair.dialogue and text != pair.response:
            wrong[text] = None
            if len(wrong) == WRONG_RESPONSES:
                break
    if not wrong:
        raise DataError(
            f"{pair.where}: no other dialogue to draw wrong responses from; name candidates in "
            ".jsonl rows"
        )
    return tuple(wrong)


def _places(random: np.random.Generator, size: int) -> Iterator[int]:
    """Random places, then every place once: so few draws are usual, and none is missed."""
    yield from random.integers(size, size=8 * WRONG_RESPONSES).tolist()
    yield from random.permutation(size).tolist()
