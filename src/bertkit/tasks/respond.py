"""Response selection: a cross-encoder finds the best response to a dialogue."""

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
from bertkit.data.multiple_choice import ChoiceQuestion, checked, choice_index, is_right, read_rows
from bertkit.data.paths import suffix
from bertkit.data.row_readers import Source, has_records
from bertkit.data.shuffling import Purpose, generator
from bertkit.errors import DataError
from bertkit.tasks.capabilities import ChanceLevel
from bertkit.tasks.choose import ChoiceReader, ChoiceTask, check_no_columns
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reading, Serving
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

WRONG_RESPONSES = 9
"""Number of wrong responses that are sampled per right response if a file has no candidates."""


class RespondOptions(Settings, frozen=True):
    """Options of response selection."""

    turns: Count = 4
    """Number of turns in the input, the most recent ones."""
    negatives: Annotated[int, Meta(ge=1, le=WRONG_RESPONSES)] = 3
    """Number of wrong responses per right response in training."""


class ResponseAnswer(msgspec.Struct, frozen=True):
    """The best response, its index and probability, and the ranking of all candidates.

    `scores` contains the probability of each candidate, in the order in which the candidates were
    passed. `order` contains the indices of the candidates, the best first.
    """

    best: str
    index: int
    score: float
    scores: list[float]
    order: list[int]
    truncated: bool = False


class ResponseReader(ChoiceReader):
    """Reader of dialogues with candidate responses from .json or .jsonl files."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[ChoiceQuestion], str]:
        """Read dialogues.

        A .json file contains `[{"dialogue": [[turn, response], ...]}, ...]`. A .jsonl file contains
        rows {context, response, candidates}. The context is a list of turns, or a text with one
        turn per line. The candidates include the right response.
        """
        check_no_columns(reading, "respond")
        is_list = isinstance(source, Path) and suffix(source) == ".json"
        if isinstance(source, Path) and is_list:
            pairs, unit = list(_read_dialogues(source)), "dialogues"
        elif has_records(source):
            pairs, unit = _read_rows(source, labeled), "rows of context and response"
        else:
            raise DataError(f"{source}: unknown file type; pass .json or .jsonl, also .gz")
        if not pairs:
            raise DataError(f"{source}: the file contains no response; add responses")
        questions = _convert(pairs, labeled, dialogues=is_list)
        sizes = {len(example.choices) for example in questions}
        most = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{max(sizes)}"
        count = len({pair.dialogue for pair in pairs})
        return (
            questions,
            f"{source}: {count:,} {unit}; {len(questions):,} responses, {most} candidates each",
        )


class Respond(ChoiceTask[ResponseAnswer], ChanceLevel):
    """Response selection: a cross-encoder finds the best of several candidates.

    The text of an example contains one turn per line.

    If a file has no candidates, up to nine wrong responses are sampled from the other dialogues in
    the file. The sample depends only on the file and on the position of the example in it.
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
        labeled: bool,
    ) -> list[Feature]:
        """Encode each candidate together with the turns, which are separated by [SEP].

        If `labeled` is set, the candidates are the right response and the first `negatives` wrong
        responses. Truncation removes the oldest tokens.
        """
        separator = f" {tokenizer.pieces([tokenizer.sep])[0]} "
        questions = []
        for example in examples:
            turns = example.text.splitlines()[-self.options.turns :]
            if labeled:
                example = self._limit_negatives(example)
            questions.append(replace(example, text=separator.join(turns)))
        return super().features(questions, tokenizer, length, long=long, labeled=labeled)

    def _limit_negatives(self, example: ChoiceQuestion) -> ChoiceQuestion:
        assert example.answer is not None
        right = example.choices[example.answer]
        wrong = [c for index, c in enumerate(example.choices) if index != example.answer]
        return replace(example, choices=(right, *wrong[: self.options.negatives]), answer=0)

    def answers(
        self, outputs: Sequence[ExampleOutput[ChoiceQuestion]], head: nn.Module
    ) -> list[ResponseAnswer]:
        answers = []
        for item in outputs:
            probs = self.probabilities(item)
            order, scores = np.argsort(-probs, kind="stable").tolist(), probs.tolist()
            first = order[0]
            text = item.example.choices[first]
            answers.append(
                ResponseAnswer(text, first, scores[first], scores, order, item.truncated)
            )
        return answers

    def score(
        self, answers: Sequence[ResponseAnswer], examples: Sequence[ChoiceQuestion]
    ) -> dict[str, float]:
        """Compute MRR, and recall@k for each k of 1, 2 and 5 that is below the candidate count."""
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
    """Return the rank of the right response among the candidates, from 1.

    Ties count against the right response, so a model does not profit from equal scores. Copies of
    the right response are not counted.
    """
    assert example.answer is not None
    least = answer.scores[example.answer]
    better = (i for i, score in enumerate(answer.scores) if score >= least)
    return 1 + sum(not is_right(example, i) for i in better)


# ---- Reader


@dataclass(frozen=True)
class _Pair:
    """Turns, the response to them, and all candidates. Values missing in the file are None."""

    turns: tuple[str, ...]
    response: str | None
    candidates: tuple[str, ...] | None
    dialogue: int
    where: str


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


class _Dialogue(msgspec.Struct, frozen=True):
    dialogue: list[tuple[str, str]]


def _read_dialogues(path: Path) -> Iterator[_Pair]:
    try:
        dialogues = msgspec.json.decode(read_text(path), type=list[_Dialogue])
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(
            f'{path}: not a JSON list of {{"dialogue": [[turn, response], ...]}} ({error})'
        ) from None
    for number, row in enumerate(dialogues):
        turns: list[str] = []
        for position, pair in enumerate(row.dialogue, 1):
            turn, response = map(_collapse_spaces, pair)
            where = f"{path}: dialogue {number + 1}, pair {position}"
            is_last = position == len(row.dialogue)
            if not turn or not (response or is_last):
                raise DataError(f"{where}: a turn is empty; only the last response can be empty")
            turns.append(turn)
            if response:
                yield _Pair(tuple(turns), response, None, number, where)
                turns.append(response)


class _Row(msgspec.Struct, frozen=True):
    context: str | tuple[str, ...]
    response: str | None = None
    candidates: tuple[str, ...] | None = None


def _read_rows(source: Source, labeled: bool) -> list[_Pair]:
    numbers = itertools.count()

    def read(where: str, row: _Row) -> _Pair:
        lines = row.context.splitlines() if isinstance(row.context, str) else row.context
        turns = tuple(filter(None, map(_collapse_spaces, lines)))
        if not turns:
            raise DataError(f"{where}: the context is empty; add the turns before the response")
        if row.response is None and (labeled or row.candidates is None):
            raise DataError(
                f"{where}: no response; add a response" + ("" if labeled else " or candidates")
            )
        if row.response is not None and not row.response.strip():
            raise DataError(f"{where}: the response is empty; add it or remove the row")
        return _Pair(turns, row.response, row.candidates, next(numbers), where)

    return read_rows(read, _Row, source)


def _convert(pairs: Sequence[_Pair], labeled: bool, *, dialogues: bool) -> list[ChoiceQuestion]:
    pool = [(pair.response, pair.dialogue) for pair in pairs if pair.response is not None]
    questions = []
    for index, pair in enumerate(pairs):
        text, answer = "\n".join(pair.turns), None
        choices = pair.candidates
        if choices is None:
            assert pair.response is not None
            random = generator(0, 0, index, Purpose.SAMPLE)
            wrong = _sample_wrong_responses(random, pool, pair)
            answer = int(random.integers(len(wrong) + 1))
            choices = (*wrong[:answer], pair.response, *wrong[answer:])
        elif labeled:
            assert pair.response is not None
            answer = choice_index(pair.response, choices, pair.where)
        example = ChoiceQuestion(
            text,
            choices,
            answer if labeled else None,
            dialogue=pair.dialogue if dialogues else None,
            where=pair.where,
        )
        questions.append(checked(example))
    return questions


def _sample_wrong_responses(
    random: np.random.Generator, pool: Sequence[tuple[str, int]], pair: _Pair
) -> tuple[str, ...]:
    """Sample up to nine different responses from other dialogues.

    Raises:
        DataError: If other dialogues contain no different response.
    """
    wrong: dict[str, None] = {}
    for index in _sample_indices(random, len(pool)):
        text, dialogue = pool[index]
        if dialogue != pair.dialogue and text != pair.response:
            wrong[text] = None
            if len(wrong) == WRONG_RESPONSES:
                break
    if not wrong:
        raise DataError(
            f"{pair.where}: no other dialogue to sample wrong responses from; add candidates in "
            ".jsonl rows"
        )
    return tuple(wrong)


def _sample_indices(random: np.random.Generator, size: int) -> Iterator[int]:
    """Yield random indices, and then every index once in random order.

    The first random indices are usually enough. The permutation ensures that no index is missed.
    """
    yield from random.integers(size, size=8 * WRONG_RESPONSES).tolist()
    yield from random.permutation(size).tolist()
