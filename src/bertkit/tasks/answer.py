"""Extractive question answering. Questions may be unanswerable.

Source: Devlin et al. 2019, sections 4.2 and 4.3.
"""

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

QUESTIONS_PER_BATCH = 1024
"""Number of questions that are tokenized together, which limits the memory use."""

NO_ANSWER = "(no answer)"
"""Text that the list of errors shows instead of an empty answer."""


class AnswerOptions(Settings, frozen=True):
    """Options of extractive question answering."""

    window_overlap: Annotated[int, Meta(ge=0)] = 128
    """Number of context tokens that consecutive windows share. It is limited to half of the context
    tokens in a window. (`doc_stride` in the paper's code is the distance between window starts.)"""
    question_tokens: Count = 64
    """Maximum number of question tokens, at most half of the model's maximum length. Longer
    questions are truncated, and their answers are marked as truncated."""
    answer_tokens: Count = 30
    """Maximum number of answer tokens."""
    best: Count = 20
    """Number of candidate answers per question. Their probabilities are normalized to sum to 1."""
    no_answer: bool | None = None
    """Whether questions can be unanswerable. Default: inferred from the training file."""
    null_threshold: float | None = None
    """Threshold for the logit of "no answer" minus the logit of the best answer. If the difference
    is above the threshold, no answer is returned. Default: optimized on dev, whose scores then have
    names such as `best_f1`, or 0 if dev has no unanswerable questions."""


class AnswerSpan(msgspec.Struct, frozen=True):
    """Candidate answer: a span of the context, in characters [start, end), and its probability."""

    text: str
    start: int
    end: int
    score: float


class QuestionAnswer(msgspec.Struct, frozen=True):
    """Answer to a question, its probability, and the best candidates.

    `answer` is "" if there is no answer. Otherwise, it equals `context[start:end]`. `best` contains
    the candidates in the order of descending probability. Their probabilities sum to 1, together
    with the probability of "no answer" if unanswerable questions are allowed. `null_score` is the
    logit of "no answer" minus the logit of the best candidate. `truncated` is true if the question
    was truncated. Contexts are never truncated.
    """

    answer: str
    start: int
    end: int
    score: float
    best: list[AnswerSpan]
    null_score: float
    truncated: bool = False


class QuestionReader(Reader[Question]):
    """Reader of questions and contexts, from SQuAD files or .jsonl rows."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[Question], str]:
        """Read a SQuAD 1.1 or 2.0 file (.json), or rows (.jsonl). Files may be compressed (.gz)."""
        for option in reading.options().values():
            raise ConfigError(f"{option}: not supported for SQuAD and .jsonl files; remove it")
        return read_questions(source, labeled=labeled)

    def example(self, text: str, others: Sequence[str]) -> Question:
        if len(others) != 1:
            raise DataError(
                f"{text[:40]!r}: expected a question and one context, got {len(others)} contexts; "
                "pass the context with --pair, or both as a tuple"
            )
        if not (text.strip() and others[0].strip()):
            raise DataError("the question or its context is empty; remove the question")
        return Question(text, others[0])

    def key(self, example: Question) -> tuple[str, str]:
        return example.question, example.context

    def group(self, example: Question) -> str:
        return example.context


class Answer(Task[Question, QuestionAnswer], Calibrated, ChanceLevel):
    """Extractive question answering: the model finds the span of a text that answers a question.

    The head computes a softmax over the start positions, and one over the end positions.
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
                f"{train[0].where}: no question has an answer; add answerable questions"
            )
        if options.no_answer is None:
            no_answer = not all(example.answerable for example in train)
            options = msgspec.structs.replace(options, no_answer=no_answer)
        if options.null_threshold is not None and not options.no_answer:
            raise DataError(
                "null_threshold: requires unanswerable questions in train; remove null_threshold"
            )
        return cls((), options)

    # ---- Features, targets, and loss

    def features(
        self,
        examples: Sequence[Question],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        """Encode each question with overlapping windows of its context.

        The windows cover all tokens of the context. The target of a window is the span of the
        first correct answer if the window contains the whole span. Otherwise, or if the question
        is unanswerable, the target is [CLS].
        """
        built = []
        for begin in range(0, len(examples), QUESTIONS_PER_BATCH):
            part = examples[begin : begin + QUESTIONS_PER_BATCH]
            encodings = tokenizer.encode_batch(
                [example.question for example in part],
                [example.context for example in part],
                max_length=NO_LIMIT,
            )
            for index, (example, encoding) in enumerate(zip(part, encodings, strict=True), begin):
                covering = _answer_tokens(encoding, example) if labeled else ()
                for window in self._windows(encoding, length, example.where):
                    target = None
                    if labeled:
                        tokens = _answer_tokens(window, example)
                        has_answer = len(tokens) == len(covering) > 0
                        target = (int(tokens[0]), int(tokens[-1])) if has_answer else (0, 0)
                    built.append(Feature(window, index, target=target))
        return built

    def _windows(self, encoding: Encoding, length: int, where: str) -> list[Encoding]:
        """Split a question and its context into windows, and truncate the question if necessary."""
        question, context = (encoding.sequence.count(text_id) for text_id in (0, 1))
        for name, size in (("question", question), ("context", context)):
            if not size:
                raise DataError(f"{where}: the {name} has no tokens; remove the question")
        capacity = length - (len(encoding) - question - context)
        question_tokens = max(min(question, self.options.question_tokens, capacity // 2), 1)
        capacity -= question_tokens
        if capacity < 1:
            raise DataError(
                f"a maximum length of {length} tokens is too short for a question and its "
                "context; increase the maximum length"
            )
        pair = encoding.cut({0: (0, question_tokens)})
        overlap = min(self.options.window_overlap, capacity // 2)
        return pair.windows(1, length, overlap)

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Return the indices of the first and the last token of the answer in each window.

        Shapes:
            Returns (S, 2).
        """
        return torch.tensor([feature.target for feature in features], dtype=torch.int64)

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Compute the mean of the cross-entropies of start and end, as in the paper's code.

        A prediction counts as correct if both the right start and the right end have the highest
        logit.
        """
        targets = batch.targets[self.head]
        layout = batch.layout
        # PyTorch's loss needs padding. It is cheap, because each token has only two values.
        shape = len(layout.lengths), max(layout.lengths), 2
        padded = outputs.new_full(shape, -torch.inf)
        padded = padded.index_put((layout.sequence_ids, layout.positions), outputs)
        loss = F.cross_entropy(padded, targets, reduction="sum") / 2 / totals[self.head]
        correct = (padded.argmax(1) == targets).all(-1).sum()
        return Loss(loss, {self.head: loss.detach()}, {self.head: correct})

    # ---- Predictions and scores

    def answers(
        self, outputs: Sequence[ExampleOutput[Question]], head: nn.Module
    ) -> list[QuestionAnswer]:
        """Predict, for each question, the span with the highest sum of start and end logit.

        The spans of all windows are compared. If two windows contain a span, the higher score
        counts.
        """
        return [self._answer(item) for item in outputs]

    def _answer(self, item: ExampleOutput[Question]) -> QuestionAnswer:
        options, context = self.options, item.example.context
        visible = _visible(context)
        parts = []
        for logits, window in zip(item.outputs, item.features, strict=True):
            tokens = window.encoding.span(1)
            starts, ends, has_text = _trim(window.encoding.offsets[tokens], visible)
            scores, first, last = best_spans(
                np.where(has_text[:, None], logits[tokens], -np.inf),
                options.answer_tokens,
                options.best,
            )
            parts.append((scores, starts[first], ends[last]))
        scores, starts, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        best: dict[tuple[int, int], float] = {}
        for i in np.argsort(-scores, kind="stable").tolist():
            if len(best) == options.best:
                break
            end = _extend_over_marks(context, int(ends[i]))
            best.setdefault((int(starts[i]), end), float(scores[i]))
        null = min(float(logits[0].sum()) for logits in item.outputs)
        truncated = item.truncated
        if not best:  # All tokens of the context are white space.
            return QuestionAnswer("", 0, 0, 1.0, [], 0.0, truncated)
        sums = np.array([*best.values(), *([null] if options.no_answer else [])])
        probabilities = np.exp(sums - sums.max())
        probabilities /= probabilities.sum()
        spans = [
            AnswerSpan(context[start:end], start, end, probability)
            for (start, end), probability in zip(best, probabilities.tolist(), strict=False)
        ]
        null_score = float(null - sums[0])
        if options.no_answer and null_score > (options.null_threshold or 0.0):
            return QuestionAnswer("", 0, 0, float(probabilities[-1]), spans, null_score, truncated)
        top = spans[0]
        return QuestionAnswer(top.text, top.start, top.end, top.score, spans, null_score, truncated)

    def uncalibrated(self) -> Settings:
        options: Settings = msgspec.structs.replace(self.options, null_threshold=None)
        return options

    def calibrated(self, answers: Sequence[QuestionAnswer], examples: Sequence[Question]) -> Self:
        """Return the task with the `null_threshold` that has the highest F1, unless it is set.

        The threshold is optimized on these questions, so their scores are higher than the scores of
        other questions. Therefore, the scores are named `best_f1` and so on. Source:
        `find_best_thresh` in the evaluation script of SQuAD 2.0. Unlike in the script, the
        threshold is halfway between the scores of two questions.
        """
        options = self.options
        if not options.no_answer or options.null_threshold is not None:
            return self
        if all(example.answerable for example in examples):
            return self
        null_scores = np.array([answer.null_score for answer in answers])
        f1 = np.array(
            [
                metrics.squad_f1(a.best[0].text if a.best else "", _golds(e))[1]
                for a, e in zip(answers, examples, strict=True)
            ]
        )
        null_f1 = np.array([float(not example.answerable) for example in examples])
        order = np.argsort(null_scores, kind="stable")
        scores, gain = null_scores[order], (f1 - null_f1)[order]
        # gains[k] is the gain in F1 if the k questions with the lowest scores are answered. No
        # threshold separates questions with equal scores.
        gains = np.concatenate([[0.0], np.cumsum(gain)])
        gains[1:-1][np.diff(scores) == 0] = -np.inf
        thresholds = np.concatenate(
            [[scores[0] - 1.0], (scores[:-1] + scores[1:]) / 2, [scores[-1] + 1.0]]
        )
        threshold = float(thresholds[gains.argmax()])
        return type(self)((), msgspec.structs.replace(options, null_threshold=threshold))

    def score(
        self, answers: Sequence[QuestionAnswer], examples: Sequence[Question]
    ) -> dict[str, float]:
        """Compute the exact match and F1 of SQuAD.

        If only some questions are answerable, the scores of answerable and unanswerable questions
        are also computed separately.
        """
        return metrics.squad([answer.answer for answer in answers], [_golds(e) for e in examples])

    def chance(self, examples: Sequence[Question]) -> dict[str, float]:
        """Return the F1 of answering no question, unless all questions are unanswerable."""
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
    """Return the spans with the highest sum of start and end logit, in any order.

    Args:
        logits: Start and end logit of each token. A span does not start or end at a token whose
            logit is -inf.
        longest: Maximum number of tokens of a span.
        best: Maximum number of spans.

    Returns:
        The score, the index of the first token, and the index of the last token of each span.

    Shapes:
        logits: (T, 2); returns (K,), (K,), (K,), where K <= best.
    """
    longest = min(longest, len(logits))
    padded = np.pad(logits[:, 1], (0, longest - 1), constant_values=-np.inf)
    ends = np.lib.stride_tricks.sliding_window_view(padded, longest)
    # Scores of all spans. Shapes: (T * longest,).
    scores = (logits[:, :1] + ends).ravel()
    top = np.arange(len(scores))
    if best < len(scores):
        top = np.argpartition(-scores, best - 1)[:best]
    top = top[scores[top] > -np.inf]
    first, distance = np.divmod(top, longest)
    return scores[top], first, first + distance


def _golds(example: Question) -> list[str]:
    return [text for text, _ in example.answers]


def _answer_tokens(encoding: Encoding, example: Question) -> NDArray[np.int64]:
    """Return the indices of the tokens of the first answer, if the question has an answer."""
    if not example.answers:
        return np.empty(0, dtype=np.int64)
    text, start = example.answers[0]
    return encoding.covering(start, start + len(text), 1)


def _visible(text: str) -> NDArray[np.int64]:
    """Return the indices of the characters that are not white space."""
    is_visible = np.ones(len(text), dtype=np.bool_)
    is_visible[[space.start() for space in re.finditer(r"\s", text)]] = False
    return np.flatnonzero(is_visible)


def _extend_over_marks(text: str, end: int) -> int:
    """Return `end`, moved behind the combining marks of the last character.

    "ë" can be encoded as "e" and a combining diaeresis. If a tokenizer strips accents, the offsets
    of the token do not include the mark.
    """
    while end < len(text) and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def _trim(
    offsets: NDArray[np.int64], visible: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Exclude white space from the offsets of tokens, and return which tokens are not empty then.

    Tokens of byte-level BPE and Unigram may include the space before a word.
    """
    first = np.searchsorted(visible, offsets[:, 0])
    last = np.searchsorted(visible, offsets[:, 1]) - 1
    starts = visible[np.minimum(first, len(visible) - 1)]
    return starts, visible[last] + 1, first <= last
