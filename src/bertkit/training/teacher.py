"""Teacher models for knowledge distillation.

A student can start from the weights of the teacher, and learn from the outputs of the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertkit.data.labels import join_labels
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError
from bertkit.models.model import Model
from bertkit.models.surgery import keep_layers
from bertkit.nn.pooling import Pool
from bertkit.objectives.distill import Distillation, Terms, default_layers
from bertkit.tasks.capabilities import Labeled, NeedsReference
from bertkit.tasks.task import Feature, Task, run_head


def copy_layers(student: Model, teacher: Model) -> None:
    """Copy the embedding, the heads and evenly spaced layers of a teacher to a student.

    Args:
        student: Model whose weights are replaced.
        teacher: Model with at least as many layers as the student.

    Raises:
        ConfigError: If weights of the student and the teacher have different shapes.
    """
    layers = default_layers(student.config.layers, teacher.config.layers)
    weights = keep_layers(teacher, layers).state_dict()
    for name, weight in student.state_dict().items():
        if name not in weights or weights[name].shape != weight.shape:
            raise ConfigError(
                f"teacher.start: {name} of the teacher has a different shape; use the teacher's "
                "sizes in [model], or remove teacher.start"
            )
    student.load_state_dict({name: weights[name] for name in student.state_dict()})


def check_length(teacher: Model, length: int, name: str) -> None:
    """Check that a teacher can process texts of this length.

    Args:
        teacher: The teacher.
        length: Maximum number of tokens per text.
        name: Name of the setting that contains the length, for the message.

    Raises:
        ConfigError: If the teacher has learned position embeddings for fewer tokens.
    """
    longest = teacher.config.learned_positions
    if longest and length > longest:
        raise ConfigError(
            f"{name} must be at most the teacher's maximum length of {longest} tokens, got "
            f"{length}; reduce {name}, or use another teacher"
        )


@dataclass(frozen=True)
class TaskTeacher:
    """Fine-tuned model from which a student learns the same task."""

    task: Task[Any, Any]
    model: Model
    """The model, ready for inference."""
    terms: Terms
    """Weights of the loss terms."""
    layers: Sequence[int]
    """For each layer of the student, the number (from 1) of the teacher layer that it is compared
    with. If empty, the teacher layers are evenly spaced."""
    record: Mapping[str, Any]
    """Description of the teacher in `run.json`."""

    def check(self, task: Task[Any, Any], student: Model) -> None:
        """Check that the outputs of the student and the teacher can be compared.

        Args:
            task: Task of the student.
            student: The student, with the head of the task.

        Raises:
            ConfigError: If the task cannot be distilled, or its labels or the embedding size do not
                match the teacher.
        """
        if isinstance(task, NeedsReference):
            raise ConfigError(
                f"teacher: {task.name} uses the initial model as its reference and cannot be "
                "distilled; use another task"
            )
        if getattr(task.options, "contrastive", False):
            raise ConfigError(
                "contrastive cannot be combined with a teacher; use a teacher that was fine-tuned "
                "without contrastive"
            )
        if task.labels != self.task.labels:
            raise ConfigError(
                f"train: expected the teacher's labels {join_labels(self.task.labels)}, got "
                f"{join_labels(task.labels)}; use data with the same labels"
            )
        widths = [_width(model, task.head) for model in (student, self.model)]
        if self.terms.outputs and len(set(widths)) > 1:
            raise ConfigError(
                f"outputs requires equal embedding sizes, got {widths[0]} (student) and "
                f"{widths[1]} (teacher); set dense to {widths[1]}, or set outputs to 0"
            )

    def annotate(
        self, task: Task[Any, Any], features: list[Feature], max_batch_tokens: int
    ) -> list[Feature]:
        """Add the outputs of the teacher to the features, if the loss needs only these outputs.

        The outputs are the same in every epoch, so they are computed only once. If the loss also
        needs hidden states or attention, which would take too much memory, the teacher runs in
        every epoch instead.

        Args:
            task: Task of the student.
            features: Features of the training data.
            max_batch_tokens: Maximum number of tokens per batch.

        Returns:
            The features with `teacher_outputs`, or the unchanged features.
        """
        terms = self.terms
        if not terms.outputs or terms.states or terms.attention or terms.relations:
            return features
        engine = Engine(self.model, precision=None, max_batch_tokens=max_batch_tokens)
        outputs = run_head(task, engine, features)
        return [replace(f, teacher_outputs=rows) for f, rows in zip(features, outputs, strict=True)]

    def objective(self, task: Task[Any, Any], student: Model) -> Distillation:
        """Return the distillation loss for a student.

        Args:
            task: Task of the student.
            student: The student, with the head of the task.

        Raises:
            ConfigError: If the layers of the student and the teacher cannot be compared.
        """
        return Distillation(
            task.loss_of,
            teacher=self.model,
            student=student,
            head=task.head,
            terms=self.terms,
            layers=self.layers,
            single_label=isinstance(task, Labeled) and task.single_label,
        )


def _width(model: Model, head: str) -> int | None:
    """Return the embedding size, or None if the head does not compute embeddings."""
    pool = model.heads[head]
    return pool.pooling.width(model.config.hidden) if isinstance(pool, Pool) else None
