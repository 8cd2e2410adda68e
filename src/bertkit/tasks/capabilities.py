"""Base classes for what only some tasks do. A task inherits from each one that it supports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from bertkit.config import Settings


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
        """Return the options without those that `calibrated` set, to train another model."""

    def chosen_on(self, before: Any) -> bool:
        """Return whether `calibrated` changed a prediction, so that scores on dev are `best_…`.

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
