"""Multiple choice: the model scores each choice. Devlin et al. 2019, section 4.4 (SWAG)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Generic, Literal, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.data.multiple_choice import ChoiceQuestion, checked, is_right, read_choices
from bertkit.data.row_readers import Source
from bertkit.errors import ConfigError, DataError
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.capabilities import ChanceLevel
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reader, Reading, Serving, Task
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer


class ChoiceAnswer(msgspec.Struct, frozen=True):
    """The most probable choice, its index and probability, and the probabilities of all choices."""

    index: int
    choice: str
    score: float
    scores: list[float]
    truncated: bool = False


class ChoiceReader(Reader[ChoiceQuestion]):
    """Reader of questions with choices, from .jsonl rows."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[ChoiceQuestion], str]:
        """Read .jsonl rows {question, choices, label}.

        A row may contain a context, together with the question or instead of it. The label is the
        index of the right choice, from 0, or its text.
        """
        check_no_columns(reading, "choose")
        return read_choices(source, labeled)

    def example(self, text: str, others: Sequence[str]) -> ChoiceQuestion:
        if len(others) < 2:
            raise DataError(
                f"{text[:40]!r}: expected at least two choices, got {len(others)}; pass each with "
                "--pair, or the text and its choices as a tuple"
            )
        return checked(ChoiceQuestion(text, tuple(others)))

    def key(self, example: ChoiceQuestion) -> tuple[str, str, tuple[str, ...]]:
        return example.text, example.stem, example.choices

    def group(self, example: ChoiceQuestion) -> Hashable:
        return example.text if example.dialogue is None else example.dialogue


A = TypeVar("A", bound=msgspec.Struct)


class ChoiceTask(Task[ChoiceQuestion, A], Generic[A]):
    """Base class of tasks that select one of several choices for a text.

    The model computes a score for each choice, and a softmax over the scores.
    """

    batching = "example"
    cut_text: ClassVar[Literal["start", "end"]] = "end"
    """Side of the text from which tokens are removed if it is too long for the model."""

    @property
    def head(self) -> str:
        return "choose"

    def check(self, examples: Sequence[ChoiceQuestion]) -> None:
        for example in examples:
            if example.answer is None:
                raise DataError(f"{example.where}: the right choice is missing; add it")

    def features(
        self,
        examples: Sequence[ChoiceQuestion],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        """Encode each choice together with the text, in the order of the choices.

        Truncation removes tokens of the text. It removes tokens from the end of a choice only if
        no tokens of the text remain.
        """
        pairs = [(e.text, f"{e.stem} {c}" if e.stem else c) for e in examples for c in e.choices]
        texts, choices = [text for text, _ in pairs], [choice for _, choice in pairs]
        encodings = iter(tokenizer.encode_batch(texts, choices, max_length=NO_LIMIT))
        built = []
        for number, example in enumerate(examples):
            for index in range(len(example.choices)):
                encoding = next(encodings)
                if len(encoding) > length:
                    if long == "error":
                        raise DataError(
                            f"{example.where}: {len(encoding)} tokens with choice {index + 1}, but "
                            f"the maximum is {length}; shorten the text or set --long truncate"
                        )
                    encoding = _truncate(encoding, length, self.cut_text)
                target = index == example.answer if labeled else None
                built.append(Feature(encoding, number, target=target))
        return built

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Return, for each example in the batch, the index of the sequence of the right choice."""
        right = [(f.example, index) for index, f in enumerate(features) if f.target]
        return torch.tensor([index for _, index in sorted(right)])

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Compute the cross-entropy over the choices of each example, averaged over the step."""
        assert batch.example is not None
        scores, targets = outputs.squeeze(1), batch.targets[self.head]
        examples = torch.arange(len(targets), device=scores.device)[:, None]
        logits = torch.where(batch.example == examples, scores, -torch.inf)  # (examples, S)
        loss = F.cross_entropy(logits, targets, reduction="sum") / totals[self.head]
        correct = (logits.argmax(-1) == targets).sum()
        return Loss(loss, {self.head: loss.detach()}, {self.head: correct})

    def probabilities(self, item: ExampleOutput[ChoiceQuestion]) -> NDArray[np.float64]:
        """Return the probabilities of the choices of an example."""
        logits = np.concatenate(item.outputs)[:, 0].astype(np.float64)
        powers = np.exp(logits - logits.max())
        probabilities: NDArray[np.float64] = powers / powers.sum()
        return probabilities


class Choose(ChoiceTask[ChoiceAnswer], ChanceLevel):
    """Multiple choice: the model selects the best of several choices.

    The head computes a score for each choice, and a softmax over the scores.
    """

    name = "choose"
    reader = ChoiceReader()
    metric = "accuracy"
    serving = Serving(
        ChoiceAnswer,
        {"text": "He opened the door.", "choices": ("It rang.", "He left.")},
        "/choose",
    )

    def answers(
        self, outputs: Sequence[ExampleOutput[ChoiceQuestion]], head: nn.Module
    ) -> list[ChoiceAnswer]:
        answers = []
        for item in outputs:
            scores = self.probabilities(item).tolist()
            best = scores.index(max(scores))
            text = item.example.choices[best]
            answers.append(ChoiceAnswer(best, text, scores[best], scores, item.truncated))
        return answers

    def score(
        self, answers: Sequence[ChoiceAnswer], examples: Sequence[ChoiceQuestion]
    ) -> dict[str, float]:
        """Compute the accuracy."""
        right = [is_right(e, a.index) for a, e in zip(answers, examples, strict=True)]
        return {"accuracy": float(np.mean(right))}

    def chance(self, examples: Sequence[ChoiceQuestion]) -> dict[str, float]:
        return {"accuracy": float(np.mean([1 / len(e.choices) for e in examples]))}

    def error_record(self, answer: ChoiceAnswer, example: ChoiceQuestion) -> ErrorRecord:
        assert example.answer is not None
        return ErrorRecord(
            f"{example.text} {example.stem}".strip(),
            example.choices[example.answer],
            f"{answer.choice} ({answer.score:.2f})",
            0.0 if is_right(example, answer.index) else 1.0 - answer.scores[example.answer],
        )


def _truncate(encoding: Encoding, length: int, end: Literal["start", "end"]) -> Encoding:
    """Truncate the first text of a pair. If this is not enough, truncate the second text, too."""
    first, second = encoding.sequence.count(0), encoding.sequence.count(1)
    capacity = length - len(encoding) + first + second
    if capacity < 1:
        raise DataError(f"{length} tokens are too few for a text; increase the maximum length")
    right = min(second, capacity)
    left = min(first, capacity - right)
    span = (0, left) if end == "end" else (first - left, first)
    return encoding.cut({0: span, 1: (0, right)}, truncated=True)


# ---- Reader


def check_no_columns(reading: Reading, task: str) -> None:
    """Check that the user set no columns, because the task reads fields with fixed names.

    Args:
        reading: Columns and format that the user set.
        task: Name of the task, for the message.

    Raises:
        ConfigError: If a column or format is set.
    """
    for option in reading.options().values():
        raise ConfigError(f"{option}: not supported by {task}; remove it")
