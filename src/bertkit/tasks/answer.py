"""The part of a text that answers a question, or that none does. Devlin et al. 2019, 4.2, 4.3."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Self

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit import metrics
from bertkit.batch import Batch
from bertkit.config import Count, Settings
from bertkit.data.question_answering import Question, read_questions
from bertkit.data.row_readers import Source
from bertkit.errors import ConfigError, DataError
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.capabilities import Calibrated, ChanceLevel
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reader, Reading, Serving, Task
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

QUESTIONS_AT_ONCE = 1024
"""Questions tokenized at a time, so that many need little memory."""

NO_ANSWER = "(no answer)"
"""How the list of errors writes that there is none."""


class AnswerOptions(Settings, frozen=True):
    """How contexts are read, and what is an answer."""

    window_overlap: Annotated[int, Meta(ge=0)] = 128
    """Tokens of the context that two neighboring windows share: at most half of what a window
    holds of it. (The `doc_stride` 128 of the paper's code is how far the next one begins.)"""
    question_tokens: Count = 64
    """Longer questions are cut, and this is said; at most half of what the model reads."""
    answer_tokens: Count = 30
    """The longest answer."""
    best: Count = 20
    """How many answers are weighed against each other."""
    no_answer: bool | None = None
    """Whether a question may have none; guessed from the training file."""
    null_threshold: float | None = None
    """No answer is given where "none" scores higher than the best answer by more than this:
    a difference of logits. The best for dev where it has such questions, whose scores are then
    named `best_`; 0 otherwise."""


class AnswerSpan(msgspec.Struct, frozen=True):
    """A part of the context and its probability. Units: characters [start, end)."""

    text: str
    start: int
    end: int
    score: float


class QuestionAnswer(msgspec.Struct, frozen=True):
    """The answer, "" where there is none, its probability, and the best ones, likeliest first.

    `null_score` is by how much "none" scores higher than the best answer, in logits. The
    probabilities of `best` and, if there may be none, of "none" add up to 1. `truncated` says
    that the question was cut; contexts never are.
    Units: characters [start, end) of the context, which holds exactly `answer` there.
    """

    answer: str
    start: int
    end: int
    score: float
    best: list[AnswerSpan]
    null_score: float
    truncated: bool = False


class QuestionReader(Reader[Question]):
    """Questions about a text, from SQuAD files or .jsonl rows."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[Question], str]:
        """Read SQuAD 1.1 and 2.0 (.json) or rows (.jsonl), also compressed (.gz)."""
        for option in reading.options().values():
            raise ConfigError(f"{option}: files of questions need none; leave it out")
        return read_questions(source, labelled=labelled)

    def example(self, text: str, others: Sequence[str]) -> Question:
        if len(others) != 1:
            raise DataError(
                f"{text[:40]!r}: {len(others)} texts to look in; give a question and one context "
                "(--pair; a program gives a tuple of both)"
            )
        if not (text.strip() and others[0].strip()):
            raise DataError("a question or its context is empty; leave it out")
        return Question(text, others[0])

    def key(self, example: Question) -> tuple[str, str]:
        return example.question, example.context

    def group(self, example: Question) -> str:
        return example.context


class Answer(Task[Question, QuestionAnswer], Calibrated, ChanceLevel):
    """Extractive question answering: the span of a text.

    The head is a softmax over the start and end positions.
    """

    name = "answer"
    reader = QuestionReader()
    metric = "f1"
    score_names = ("exact", "f1")
    Options = AnswerOptions
    serving = Serving(
        QuestionAnswer, {"question": "Who sat?", "context": "The cat sat on the mat."}, "/answer"
    )
    long = ("window",)

    @classmethod
    def from_examples(cls, train: Sequence[Question], options: Settings) -> Self:
        assert isinstance(options, AnswerOptions)
        if not any(example.answerable for example in train):
            raise DataError(
                f"{train[0].where}: no question has an answer; there is nothing to learn"
            )
        if options.no_answer is None:
            none = not all(example.answerable for example in train)
            options = msgspec.structs.replace(options, no_answer=none)
        return cls((), options)

    # ---- what the model reads and learns

    def features(
        self,
        examples: Sequence[Question],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """The question, then a window of the context; every token of it is in some window.

        A window learns the first answer's place if it holds all of it, else [CLS], as the
        windows of a question without an answer do.
        """
        built = []
        for begin in range(0, len(examples), QUESTIONS_AT_ONCE):
            part = examples[begin : begin + QUESTIONS_AT_ONCE]
            encodings = tokenizer.encode_batch(
                [example.question for example in part],
                [example.context for example in part],
                max_length=NO_LIMIT,
            )
            for place, (example, whole) in enumerate(zip(part, encodings, strict=True), begin):
                covering = _answer_tokens(whole, example) if labelled else ()
                for window in self._windows(whole, length, example.where):
                    target = None
                    if labelled:
                        tokens = _answer_tokens(window, example)
                        holds = len(tokens) == len(covering) > 0
                        target = (int(tokens[0]), int(tokens[-1])) if holds else (0, 0)
                    built.append(Feature(window, place, target=target))
        return built

    def _windows(self, whole: Encoding, length: int, where: str) -> list[Encoding]:
        """Windows of at most `length` tokens. `truncated` where the question was cut."""
        question, context = (whole.sequence.count(which) for which in (0, 1))
        for name, size in (("question", question), ("context", context)):
            if not size:
                raise DataError(f"{where}: the tokenizer finds nothing in the {name}; leave it out")
        room = length - (len(whole) - question - context)
        kept = max(min(question, self.options.question_tokens, room // 2), 1)
        room -= kept
        if room < 1:
            raise DataError(
                f"a model that reads {length} tokens has no room for a question and its context; "
                "give it more"
            )
        pair = whole.cut({0: (0, kept)})
        overlap = min(self.options.window_overlap, room // 2)
        return pair.windows(1, length, overlap)

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Where in its window each answer starts and ends. Shapes: (S, 2)."""
        return torch.tensor([feature.target for feature in features], dtype=torch.int64)

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """The mean of both cross-entropies over the tokens of each window, as the paper's code.

        A window counts as correct where both ends are the likeliest.
        """
        targets = batch.targets[self.head]
        layout = batch.layout
        # two numbers a token: padding them costs nothing, and fits the usual loss
        shape = len(layout.lengths), max(layout.lengths), 2
        padded = outputs.new_full(shape, -torch.inf)
        padded = padded.index_put((layout.sequence_ids, layout.positions), outputs)
        loss = F.cross_entropy(padded, targets, reduction="sum") / 2 / totals[self.head]
        correct = (padded.argmax(1) == targets).all(-1).sum()
        return Loss(loss, {self.head: loss.detach()}, {self.head: correct})

    # ---- what it answers

    def answers(
        self, outputs: Sequence[ExampleOutput[Question]], head: nn.Module
    ) -> list[QuestionAnswer]:
        """The spans whose two logits add up to most, over all windows.

        The same characters in two windows are one answer, with the better of its two scores.
        """
        return [self._answer(item) for item in outputs]

    def _answer(self, item: ExampleOutput[Question]) -> QuestionAnswer:
        options, context = self.options, item.example.context
        visible = _visible(context)
        parts = []
        for logits, window in zip(item.outputs, item.features, strict=True):
            tokens = window.encoding.span(1)
            starts, ends, seen = _trimmed(window.encoding.offsets[tokens], visible)
            scores, first, last = best_spans(
                np.where(seen[:, None], logits[tokens], -np.inf),
                options.answer_tokens,
                options.best,
            )
            parts.append((scores, starts[first], ends[last]))
        scores, starts, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        best: dict[tuple[int, int], float] = {}
        for i in np.argsort(-scores, kind="stable").tolist():
            if len(best) == options.best:
                break
            best.setdefault((int(starts[i]), _whole(context, int(ends[i]))), float(scores[i]))
        null = min(float(logits[0].sum()) for logits in item.outputs)
        truncated = item.truncated
        if not best:  # only white space has tokens
            return QuestionAnswer("", 0, 0, 1.0, [], 0.0, truncated)
        numbers = np.array([*best.values(), *([null] if options.no_answer else [])])
        probabilities = np.exp(numbers - numbers.max())
        probabilities /= probabilities.sum()
        spans = [
            AnswerSpan(context[start:end], start, end, probability)
            for (start, end), probability in zip(best, probabilities.tolist(), strict=False)
        ]
        above = float(null - numbers[0])
        if options.no_answer and above > (options.null_threshold or 0.0):
            return QuestionAnswer("", 0, 0, float(probabilities[-1]), spans, above, truncated)
        top = spans[0]
        return QuestionAnswer(top.text, top.start, top.end, top.score, spans, above, truncated)

    def uncalibrated(self) -> Settings:
        options: Settings = msgspec.structs.replace(self.options, null_threshold=None)
        return options

    def calibrated(self, answers: Sequence[QuestionAnswer], examples: Sequence[Question]) -> Self:
        """With the `null_threshold` of the highest F1, unless one was chosen.

        It is the best for these very questions, so that their scores with it are `best_f1` and
        so on, and not those to expect of others. Source: the evaluation script of SQuAD 2.0,
        `find_best_thresh`; here the threshold lies halfway between two questions.
        """
        options = self.options
        if not options.no_answer or options.null_threshold is not None:
            return self
        if all(example.answerable for example in examples):
            return self
        above = np.array([answer.null_score for answer in answers])
        given = np.array(
            [
                metrics.squad_f1(a.best[0].text if a.best else "", _golds(e))[1]
                for a, e in zip(answers, examples, strict=True)
            ]
        )
        none = np.array([float(not example.answerable) for example in examples])
        order = np.argsort(above, kind="stable")
        above, gain = above[order], (given - none)[order]
        # the first k questions are answered; equal scores are never parted
        gains = np.concatenate([[0.0], np.cumsum(gain)])
        gains[1:-1][np.diff(above) == 0] = -np.inf
        borders = np.concatenate(
            [[above[0] - 1.0], (above[:-1] + above[1:]) / 2, [above[-1] + 1.0]]
        )
        threshold = float(borders[gains.argmax()])
        return type(self)((), msgspec.structs.replace(options, null_threshold=threshold))

    def score(
        self, answers: Sequence[QuestionAnswer], examples: Sequence[Question]
    ) -> dict[str, float]:
        """Exact and f1 of SQuAD, and those of both kinds of questions where there are both."""
        return metrics.squad([answer.answer for answer in answers], [_golds(e) for e in examples])

    def chance(self, examples: Sequence[Question]) -> dict[str, float]:
        """A model that always predicts "no answer" is right for all questions without one."""
        without = [not example.answers for example in examples]
        return {} if all(without) else {"f1": float(np.mean(without))}

    def constant_prediction(self, answers: Sequence[QuestionAnswer]) -> str | None:
        return None if any(answer.answer for answer in answers) else NO_ANSWER

    def error_record(self, answer: QuestionAnswer, example: Question) -> ErrorRecord:
        golds = dict.fromkeys(_golds(example))
        return ErrorRecord(
            f"{example.question} ⟷ {textwrap.shorten(example.context, 300, placeholder=' …')}",
            " | ".join(golds) or NO_ANSWER,
            f"{answer.answer or NO_ANSWER} ({answer.score:.2f})",
            1.0 - metrics.squad_f1(answer.answer, [*golds])[1],
        )


def best_spans(
    logits: NDArray[np.float32], longest: int, best: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """The `best` spans of at most `longest` tokens by start plus end logit, in no order.

    Tokens at -inf neither start nor end one.
    Shapes: logits (T, 2) -> scores (K,), first tokens (K,), last tokens (K,), K <= best.
    """
    longest = min(longest, len(logits))
    behind = np.full(longest - 1, -np.inf, dtype=logits.dtype)
    ends = np.lib.stride_tricks.sliding_window_view(np.concatenate([logits[:, 1], behind]), longest)
    scores = (logits[:, :1] + ends).ravel()  # (T · longest,), every span once
    top = np.arange(len(scores))
    if best < len(scores):
        top = np.argpartition(-scores, best - 1)[:best]
    top = top[scores[top] > -np.inf]
    first, further = np.divmod(top, longest)
    return scores[top], first, first + further


def _golds(example: Question) -> list[str]:
    return [text for text, _ in example.answers]


def _answer_tokens(encoding: Encoding, example: Question) -> NDArray[np.int64]:
    """The indices of the tokens that hold characters of the first answer, if there is one."""
    if not example.answers:
        return np.empty(0, dtype=np.int64)
    text, start = example.answers[0]
    return encoding.covering(start, start + len(text), 1)


def _visible(text: str) -> NDArray[np.int64]:
    """The places of the characters that are no white space."""
    seen = np.ones(len(text), dtype=np.bool_)
    seen[[space.start() for space in re.finditer(r"\s", text)]] = False
    return np.flatnonzero(seen)


def _whole(text: str, end: int) -> int:
    """Behind the marks that belong to the last character: ë may be e and a combining diaeresis.

    Tokenizers that fold accents leave them out of their pieces, so that no token ends behind them.
    """
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def _trimmed(
    offsets: NDArray[np.int64], visible: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The characters of tokens without white space around them, and which tokens have any.

    Pieces of byte-level BPE and Unigram may hold the space before a word.
    """
    first = np.searchsorted(visible, offsets[:, 0])
    last = np.searchsorted(visible, offsets[:, 1]) - 1
    starts = visible[np.minimum(first, len(visible) - 1)]
    return starts, visible[last] + 1, first <= last
