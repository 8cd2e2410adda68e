"""Pipeline of a fine-tuned model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from bertkit.checkpoint.directory import Loaded
from bertkit.engine.engine import Engine
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.tasks import Task
from bertkit.tasks.inference import Answering
from bertkit.tasks.task import Feature, JsonObject, Outputs, run_head
from bertkit.tasks.trained_columns import columns_in

A = TypeVar("A", bound=msgspec.Struct)


@cache
def item_type(task: type[Task[Any, Any]]) -> Any:
    """Return the type of an item in requests: str, or a `Struct` that contains several texts."""
    if isinstance(example := task.serving.example, str):
        return str
    text = Annotated[str, Meta(min_length=1)]
    lines = Annotated[list[text], Meta(min_length=2)]
    fields = [(name, text if isinstance(part, str) else lines) for name, part in example.items()]
    return msgspec.defstruct(f"{task.__name__}Item", fields, bases=(JsonObject,), frozen=True)


class TaskPipeline(ModelPipeline, Answering[A]):
    """Pipeline of a model that was fine-tuned for a task."""

    def __init__(
        self, task: Task[Any, A], loaded: Loaded, engine: Engine | Inference = "fp32"
    ) -> None:
        super().__init__(loaded, engine)
        self.task, self.policies, self.length = task, task.long, loaded.length
        self.columns = columns_in(loaded.settings)
        self.item, self.prediction = item_type(type(task)), task.serving.prediction
        example = task.serving.example
        self.example = example if isinstance(example, str) else tuple(example.values())
        self.head = self._get_head(task.head, f"fine-tune one with `bertkit finetune {task.name}`")

    def __repr__(self) -> str:
        return f"<TaskPipeline {self.task.name} of {self.loaded!r}>"

    def outputs(self, features: Sequence[Feature]) -> list[Outputs]:
        return run_head(self.task, self.engine, features)
