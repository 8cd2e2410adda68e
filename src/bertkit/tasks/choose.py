"""The right one of several choices: one score each. Devlin et al. 2019, section 4.4 (SWAG)."""

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
    """The likeliest choice, its probability, and those of all choices in their order."""

    index: int
    choice: str
    score: float
    scores: list[float]
    truncated: bool = False


class ChoiceReader(Reader[ChoiceQuestion]):
    """Questions with choices, from .jsonl rows."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[ChoiceQuestion], str]:
        """Read .jsonl rows {question, choices, label}.

        A row may have a context, with or without a question. The label is the index of the right
        choice, from 0, or its text.
        """
        refuse_columns(reading, "choose")
        return read_choices(source, labelled)

    def example(self, text: str, others: Sequence[str]) -> ChoiceQuestion:
        if len(others) < 2:
            raise DataError(
                f"{text[:40]!r}: give two choices or more (--pair for each; a "
                "program gives a tuple of the text and its choices)"
            )
        return checked(ChoiceQuestion(text, tuple(others)))

    def key(self, example: ChoiceQuestion) -> tuple[str, str, tuple[str, ...]]:
        return example.text, example.stem, example.choices

    def group(self, example: ChoiceQuestion) -> Hashable:
        return example.text if example.dialogue is None else example.dialogue


A = TypeVar("A", bound=msgspec.Struct)


class ChoiceTask(Task[ChoiceQuestion, A], Generic[A]):
    """Base class of tasks that score each choice of a text; a softmax is over the choices."""

    batching = "example"
    cut_text: ClassVar[Literal["start", "end"]] = "end"
    """Where a text too long for the model loses tokens."""

    @property
    def head(self) -> str:
        return "choose"

    def check(self, examples: Sequence[ChoiceQuestion]) -> None:
        for example in examples:
            if example.answer is None:
                raise DataError(f"{example.where}: no right choice is marked; mark one")

    def features(
        self,
        examples: Sequence[ChoiceQuestion],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """One for each choice, in order. What is too long loses tokens of the text; of the choice
        (at its end) only when that alone fills the model.
        """
        pairs = [(e.text, f"{e.stem} {c}" if e.stem else c) for e in examples for c in e.choices]
        texts, choices = [text for text, _ in pairs], [choice for _, choice in pairs]
        encodings = iter(tokenizer.encode_batch(texts, choices, max_length=NO_LIMIT))
        built = []
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
                built.append(Feature(encoding, number, target=right))
        return built

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

    def probabilities(self, item: ExampleOutput[ChoiceQuestion]) -> NDArray[np.float64]:
        """Of an example's choices."""
        scores = np.concatenate(item.outputs)[:, 0].astype(np.float64)
        likely = np.exp(scores - scores.max())
        probabilities: NDArray[np.float64] = likely / likely.sum()
        return probabilities


class Choose(ChoiceTask[ChoiceAnswer], ChanceLevel):
    """Multiple choice: the best of several choices.

    The head computes one score per choice, and a softmax over the choices.
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
        """Accuracy."""
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


def refuse_columns(reading: Reading, task: str) -> None:
    """Raises: ConfigError when columns are named, which these formats know themselves."""
    for option in reading.options().values():
        raise ConfigError(f"{option}: the files of {task} need none; leave it out")
