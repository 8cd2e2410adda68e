"""What a fine-tuned model answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from bertkit.checkpoint.directory import Loaded
from bertkit.engine.engine import Engine
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.tasks import Task
from bertkit.tasks.inference import Answering
from bertkit.tasks.task import Feature, Outputs
from bertkit.tasks.trained_columns import columns_in

A = TypeVar("A", bound=msgspec.Struct)


class TaskPipeline(ModelPipeline, Answering[A]):
    """A fine-tuned model that answers (`Answering`)."""

    def __init__(
        self, task: Task[Any, A], loaded: Loaded, engine: Engine | Inference = "fp32"
    ) -> None:
        super().__init__(loaded, engine)
        self.task, self.policies, self.length = task, task.long, loaded.length
        self.columns = columns_in(loaded.settings)
        self.item, self.prediction, self.example = task.signature()
        self.head = self._needs(task.head, f"fine-tune one with `bertkit finetune {task.name}`")

    def __repr__(self) -> str:
        return f"<Answer to {self.task.name} of {self.loaded!r}>"

    def outputs(self, features: Sequence[Feature]) -> list[Outputs]:
        return self.task.run(self.engine, features)
