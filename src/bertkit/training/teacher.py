"""A model from which another learns: its layers to begin with, and what it knows of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertkit.data.labels import listed
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError
from bertkit.models.model import Model
from bertkit.models.surgery import keep_layers
from bertkit.nn.pooling import Pool
from bertkit.objectives.distill import Distillation, Terms, usual_layers
from bertkit.tasks.capabilities import Labeled, NeedsReference
from bertkit.tasks.task import Feature, Task, run_head


def begin_as(student: Model, teacher: Model) -> None:
    """Give a student the teacher's embedding, heads and layers, evenly taken.

    Raises: ConfigError where their shapes differ.
    """
    kept = usual_layers(student.config.layers, teacher.config.layers)
    weights = keep_layers(teacher, kept).state_dict()
    for name, weight in student.state_dict().items():
        if name not in weights or weights[name].shape != weight.shape:
            raise ConfigError(
                f"teacher.start: {name} of the teacher has another shape; give the model the "
                "teacher's width, or leave it out"
            )
    student.load_state_dict({name: weights[name] for name in student.state_dict()})


def check_length(teacher: Model, length: int, name: str) -> None:
    """Check that the teacher has learned positions for texts of this length.

    Raises:
        ConfigError: If it has fewer.
    """
    longest = teacher.config.learned_positions
    if longest and length > longest:
        raise ConfigError(
            f"{name} = {length}: is longer than the {longest} tokens that the teacher reads; lower "
            "it, or take another teacher"
        )


@dataclass(frozen=True)
class TaskTeacher:
    """A model that knows a task, ready for inference, and what is learned from it.

    `layers` names, for each of the student's layers, the teacher's that it is to be like, from 1;
    evenly by default. `record` is what `run.json` says of it.
    """

    task: Task[Any, Any]
    model: Model
    terms: Terms
    layers: Sequence[int]
    record: Mapping[str, Any]

    def check(self, task: Task[Any, Any], student: Model) -> None:
        """Raises: ConfigError for a student whose answers cannot be compared with the teacher's."""
        if isinstance(task, NeedsReference):
            raise ConfigError(
                f"teacher: {task.name} learns from where a model began, and from no teacher; name "
                "one that another task tuned"
            )
        if getattr(task.options, "contrastive", False):
            raise ConfigError(
                "contrastive: a student learns from a teacher's answers, and not from pairs; "
                "take a teacher that was learned without"
            )
        if task.labels != self.task.labels:
            raise ConfigError(
                f"train: its labels are {listed(task.labels)}, the teacher answers "
                f"{listed(self.task.labels)}; a student learns the same ones"
            )
        widths = [_width(model, task.head) for model in (student, self.model)]
        if self.terms.outputs and len(set(widths)) > 1:
            raise ConfigError(
                f"outputs: the student's vectors have {widths[0]} numbers and its teacher's "
                f"{widths[1]}; give the student such a layer (dense), or set outputs to 0"
            )

    def annotate(
        self, task: Task[Any, Any], features: list[Feature], max_batch_tokens: int
    ) -> list[Feature]:
        """The features with the teacher's outputs, where these are all that is learned from it.

        They are the same in every epoch; of states there would be too much to keep.
        """
        terms = self.terms
        if not terms.outputs or terms.states or terms.attention or terms.relations:
            return features
        engine = Engine(self.model, precision=None, max_batch_tokens=max_batch_tokens)
        outputs = run_head(task, engine, features)
        return [replace(f, teacher_outputs=rows) for f, rows in zip(features, outputs, strict=True)]

    def objective(self, task: Task[Any, Any], student: Model) -> Distillation:
        """Raises: ConfigError for a student that cannot follow its teacher's layers."""
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
    """How many numbers a vector has, where the head makes vectors."""
    pool = model.heads[head]
    return pool.pooling.width(model.config.hidden) if isinstance(pool, Pool) else None
