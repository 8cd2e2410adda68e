"""Base classes for optional features of tasks. A task inherits from the classes it supports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bertkit.config import Settings
from bertkit.tasks.confusion import LabelPair, LabelReport, label_report
from bertkit.tasks.task import Feature
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # An exported model makes predictions without torch.
    from bertkit.nn.pooling import Pooling


class Calibrated(ABC):
    """Task with options that are set from its predictions for dev, such as a threshold."""

    @abstractmethod
    def calibrated(self, answers: Sequence[Any], examples: Sequence[Any]) -> Self:
        """Return the task with the options that are best for dev, or the task itself.

        Args:
            answers: Predictions for dev.
            examples: Examples of dev.
        """

    @abstractmethod
    def uncalibrated(self) -> Settings:
        """Return the options before calibration on dev, to train another model."""

    def chosen_on(self, before: Any) -> bool:
        """Return whether `calibrated` changed a prediction.

        The names of scores on dev then begin with `best_`.

        Args:
            before: The task whose method `calibrated` returned this task.
        """
        return self is not before

    def calibration(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Compute the calibration error; return an empty dict if no confidence was calibrated.

        Args:
            answers: Predictions of the calibrated task.
            examples: Labeled examples.
        """
        return {}


class Labeled(ABC):
    """Task whose reports contain the scores of each label and the confusion matrix."""

    labels: tuple[str, ...]
    labels_compete: bool = True
    """Whether an example has one label only, so that there is a confusion matrix."""
    single_label: bool = False
    """Whether the softmax of each row of outputs contains the probabilities of the labels."""

    @abstractmethod
    def label_pairs(self, answer: Any, example: Any) -> Sequence[LabelPair]:
        """Return pairs of an expected and a predicted label; None if there is no such label.

        Args:
            answer: The prediction for an example.
            example: A labeled example.
        """


class ChanceLevel(ABC):
    """Task whose scores without training are known, so that bertkit warns if training failed."""

    @abstractmethod
    def chance(self, examples: Sequence[Any]) -> Mapping[str, float]:
        """Return the scores of guessing by name, such as the accuracy of random choices.

        Args:
            examples: Labeled examples.
        """

    def constant_prediction(self, answers: Sequence[Any]) -> str | None:
        """Return the prediction that all answers share, or None if they differ.

        Args:
            answers: Predictions, at least one.
        """
        return None


class UsesPooling(ABC):
    """Task that depends on how the initial model pools token states to an embedding."""

    @abstractmethod
    def with_pooling(self, pooling: Pooling | None) -> Self:
        """Return the task for a model with this pooling, or without pooling if it is None."""


class UsesDecoder(ABC):
    """Task that depends on the decoder of the initial model."""

    @abstractmethod
    def with_decoder(self, begin: Sequence[int], tokenizer: Tokenizer) -> Self:
        """Return the task for a decoder.

        Args:
            begin: First tokens of each text of the decoder; empty if there is no encoder.
            tokenizer: Tokenizer of the decoder.

        Raises:
            CheckpointError: If the task does not support the model.
        """


class NeedsReference(ABC):
    """Task whose loss compares the model with the initial model."""

    add_reference: ClassVar[Callable[..., tuple[list[Feature], list[Feature]]]]
    """Function that sets `teacher_outputs` of features to the outputs of the initial model.
    Arguments: run, task, features of train and dev, `start` (the last step), and
    `max_batch_tokens`."""


def compute_label_report(
    task: object, answers: Sequence[Any], examples: Sequence[Any]
) -> LabelReport | None:
    """Compute the scores of each label; return None for a task or predictions without labels.

    Args:
        task: The task.
        answers: Predictions for the examples.
        examples: Labeled examples.
    """
    if not isinstance(task, Labeled):
        return None
    rows = zip(answers, examples, strict=True)
    pairs = (pair for answer, example in rows for pair in task.label_pairs(answer, example))
    return label_report(pairs, task.labels, compete=task.labels_compete)
