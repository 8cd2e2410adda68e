"""Base classes for optional features. A task inherits from the classes of the features it has."""

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
    """Task with options, such as a threshold, that are optimized on its predictions for dev."""

    @abstractmethod
    def calibrated(self, answers: Sequence[Any], examples: Sequence[Any]) -> Self:
        """Return the task with the options that are best on dev, or the task itself.

        Args:
            answers: Predictions for dev.
            examples: Examples of dev.
        """

    @abstractmethod
    def uncalibrated(self) -> Settings:
        """Return the options without the values optimized on dev, to train another model."""

    def chosen_on(self, before: Any) -> bool:
        """Return whether the optimized options can change a prediction.

        If so, the names of scores on dev begin with `best_`.

        Args:
            before: The task before calibration, whose method `calibrated` returned this task.
        """
        return self is not before

    def calibration(self, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Compute the calibration error, or return an empty dict if confidences are not calibrated.

        Args:
            answers: Predictions of the calibrated task.
            examples: Labeled examples.
        """
        return {}


class Labeled(ABC):
    """Task whose reports contain the scores of each label and the confusion matrix."""

    labels: tuple[str, ...]
    labels_compete: bool = True
    """Whether each example has exactly one label. Only then is there a confusion matrix."""
    single_label: bool = False
    """Whether a softmax over each row of the outputs computes the probabilities of the labels."""

    @abstractmethod
    def labels_of(self, example: Any) -> Sequence[str]:
        """Return the expected labels of an example, or nothing if the label is a number."""

    @abstractmethod
    def label_pairs(self, answer: Any, example: Any) -> Sequence[LabelPair]:
        """Return pairs of an expected and a predicted label. A missing label is None.

        Args:
            answer: The prediction for an example.
            example: A labeled example.
        """


class ChanceLevel(ABC):
    """Task whose scores at chance level are known. bertkit warns if a model is not better."""

    @abstractmethod
    def chance(self, examples: Sequence[Any]) -> Mapping[str, float]:
        """Return the names and values of scores at chance level, such as the accuracy of guessing.

        Args:
            examples: Labeled examples.
        """

    def constant_prediction(self, answers: Sequence[Any]) -> str | None:
        """Return the prediction if all predictions are equal, or None if they differ.

        Args:
            answers: At least one prediction.
        """
        return None


class UsesPooling(ABC):
    """Task that depends on how the initial model computes an embedding from the token states."""

    @abstractmethod
    def with_pooling(self, pooling: Pooling | None) -> Self:
        """Return the task for a model with this pooling, or for a model without pooling (None)."""


class UsesDecoder(ABC):
    """Task that depends on the decoder of the initial model."""

    @abstractmethod
    def with_decoder(self, begin: Sequence[int], tokenizer: Tokenizer) -> Self:
        """Return the task for a model with this decoder.

        Args:
            begin: Ids of the tokens with which each text of the decoder begins; empty if the model
                has no encoder.
            tokenizer: Tokenizer of the decoder.

        Raises:
            CheckpointError: If the task does not support the model.
        """


class NeedsReference(ABC):
    """Task whose loss compares the model with the initial model."""

    add_reference: ClassVar[Callable[..., tuple[list[Feature], list[Feature]]]]
    """Function that returns the features with the outputs of the initial model as their
    `teacher_outputs`. Its arguments are the run, the task, the features of train and of dev,
    `start` (the number of finished steps), and `max_batch_tokens`."""


def compute_label_report(
    task: object, answers: Sequence[Any], examples: Sequence[Any]
) -> LabelReport | None:
    """Compute the scores of each label, or return None if there are no labels.

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
