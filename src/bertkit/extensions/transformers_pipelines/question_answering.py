"""The pipeline `question-answering`.

The scores differ from the scores of bertkit's task `answer`, which normalizes over the candidates.
Here, the score of a span is the probability of its start times the probability of its end. Both
probabilities come from a softmax over the context and [CLS] of one window. The scores of equal
answers are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bertkit.config import Count
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.transformers_pipelines.base import Arguments, TransformersPipeline, windows
from bertkit.tasks.task import Feature
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

LONGEST = 384
"""Default of `max_seq_len`, unless the maximum length of the model is smaller."""


class QuestionAnsweringArguments(Arguments, frozen=True):
    """Arguments of `QuestionAnsweringPipeline`."""

    top_k: Count = 1
    """Maximum number of answers to return. If there are several, the result is a list."""
    doc_stride: Annotated[int, Meta(ge=0)] | None = None
    """Number of context tokens that consecutive windows share. Default: 128, but at most half of
    `max_seq_len`."""
    max_answer_len: Count = 15
    """Maximum number of tokens in an answer."""
    max_seq_len: Count | None = None
    """Maximum number of tokens in a window, including the question. Default: 384, or the maximum
    length of the model if it is smaller."""
    max_question_len: Count = 64
    """This has no effect, as in transformers with a fast tokenizer."""
    handle_impossible_answer: bool = False
    """Whether an answer can be empty, which means that the context does not answer the question."""
    align_to_words: bool = True
    """Whether answers begin and end with whole words."""


class QuestionAnsweringPipeline(TransformersPipeline):
    """Predict the span of a context that answers a question.

    Unlike transformers, bertkit does not return candidates with a score of 0. These are spans that
    end before they start, and spans that are longer than `max_answer_len`.
    """

    accepted, runs = QuestionAnsweringArguments, "answer"

    def __call__(
        self, *inputs: Any, question: Any = None, context: Any = None, **arguments: Any
    ) -> Any:
        """Return the best answers to a question as dicts. For several questions, return a list.

        Args:
            inputs: A dict with the keys question and context, a list of such dicts, or a question
                and its context.
            question: A question, or several questions.
            context: One context for all questions, or a context for each question.
            arguments: Arguments of `QuestionAnsweringArguments`.

        Raises:
            ConfigError: If an argument is unknown or has an invalid value.
            DataError: If a question or context is missing or empty.
        """
        if question is not None or context is not None:
            inputs = (*inputs, question, context)
        items = _paired(*inputs) if len(inputs) == 2 else inputs[0] if len(inputs) == 1 else None
        if items is None:
            raise DataError("a question and a context are required; pass question= and context=")
        results = super().__call__([items] if isinstance(items, Mapping) else items, **arguments)
        return results[0] if len(results) == 1 else results

    def check_items(self, items: Sequence[Any], arguments: Any) -> None:
        for index, item in enumerate(items):
            for name in ("question", "context"):
                text = item.get(name) if isinstance(item, Mapping) else None
                if not (isinstance(text, str) and text.strip()):
                    raise DataError(
                        f"inputs[{index}]: expected a {name} with visible characters; pass a dict "
                        "with the keys question and context"
                    )

    def results(self, items: Sequence[Any], arguments: Any) -> list[Any]:
        questions, contexts = ([item[name] for item in items] for name in ("question", "context"))
        loaded = self.model.loaded
        longest = arguments.max_seq_len or min(LONGEST, loaded.length)
        if longest > loaded.length:
            raise ConfigError(
                f"max_seq_len: must be at most {loaded.length}, which is the maximum length of "
                f"the model, got {longest}"
            )
        overlap = arguments.doc_stride
        overlap = min(longest // 2, 128) if overlap is None else overlap
        encodings = loaded.tokenizer.encode_batch(questions, contexts, max_length=NO_LIMIT)
        features = [
            Feature(window, index)
            for index, encoding in enumerate(encodings)
            for window in windows(encoding, 1, longest, overlap, "doc_stride")
        ]
        answers = [_Answers(context, loaded.tokenizer, arguments) for context in contexts]
        for feature, logits in zip(features, self.model.outputs(features), strict=True):
            answers[feature.example].add(feature.encoding, logits.astype(np.float64))
        return [found.best() for found in answers]


class _Answers:
    """The answers to a question, which are collected from the windows of its context."""

    def __init__(self, context: str, tokenizer: Tokenizer, arguments: Any) -> None:
        self.context, self.arguments = context, arguments
        self.cls = tokenizer.cls if tokenizer.knows("cls") else None
        self.impossible = np.inf
        self.found: dict[str, dict[str, Any]] = {}
        """Answers, by their lowercase text."""

    def add(self, window: Encoding, logits: NDArray[np.float64]) -> None:
        """Add the spans with the highest scores in a window. Shapes: logits is (T, 2)."""
        arguments = self.arguments
        is_context = np.array([part == 1 for part in window.sequence])
        is_candidate = is_context | (window.ids == self.cls)
        logits = np.where(is_candidate[:, None], logits, -np.inf)
        powers = np.exp(logits - logits.max(0))
        start, end = (powers / powers.sum(0)).T
        self.impossible = min(self.impossible, float(start[0] * end[0]))
        start[0] = end[0] = 0.0
        scores = np.triu(np.outer(start, end))
        scores -= np.triu(scores, arguments.max_answer_len)
        # Consider more spans than needed, because alignment to words can turn several into one
        # answer.
        count = 2 * arguments.top_k + 10 if arguments.align_to_words else arguments.top_k
        best = np.argsort(-scores, axis=None, kind="stable")[:count]
        for first, last in zip(*np.unravel_index(best, scores.shape), strict=True):
            if score := float(scores[first, last]):
                self._add_span(*_characters(window, first, last, arguments.align_to_words), score)

    def _add_span(self, start: int, end: int, score: float) -> None:
        text = self.context[start:end]
        answer = {"score": 0.0, "start": start, "end": end, "answer": text}
        self.found.setdefault(text.lower(), answer)["score"] += score

    def best(self) -> Any:
        """Return the best answer as a dict, or a list of answers if there is not exactly one."""
        answers = list(self.found.values())
        if self.arguments.handle_impossible_answer:
            answers.append({"score": self.impossible, "start": 0, "end": 0, "answer": ""})
        answers.sort(key=lambda answer: -answer["score"])
        answers = answers[: self.arguments.top_k]
        return answers[0] if len(answers) == 1 else answers


def _characters(window: Encoding, first: int, last: int, aligned: bool) -> tuple[int, int]:
    """Return where tokens start and end in the text, extended to whole words if `aligned`."""
    words = window.words[first], window.words[last]
    if not aligned or None in words:
        return int(window.offsets[first, 0]), int(window.offsets[last, 1])
    inside = window.span(1)
    of_words = np.array(window.words[inside])
    offsets = window.offsets[inside]
    return int(offsets[of_words == words[0], 0][0]), int(offsets[of_words == words[1], 1][-1])


def _paired(questions: Any, contexts: Any) -> Any:
    """Combine each question with its context in a dict.

    Raises:
        DataError: If the numbers of questions and contexts differ.
    """
    if isinstance(questions, str) and isinstance(contexts, str):
        return {"question": questions, "context": contexts}
    if isinstance(questions, str) or contexts is None or questions is None:
        raise DataError("a question and a context are required; pass question= and context=")
    contexts = [contexts] * len(questions) if isinstance(contexts, str) else contexts
    if len(contexts) != len(questions):
        raise DataError(f"{len(questions):,} questions, but {len(contexts):,} contexts; pass pairs")
    return [
        {"question": question, "context": context}
        for question, context in zip(questions, contexts, strict=True)
    ]
