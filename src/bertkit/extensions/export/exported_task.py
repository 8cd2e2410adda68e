"""Predictions with an exported model that has the head of a task, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.export.exported import LOGITS, Graph, GraphPrecision
from bertkit.tasks import Task, find, recorded_task
from bertkit.tasks.inference import Answering
from bertkit.tasks.task import Feature, Outputs
from bertkit.tasks.trained_columns import columns_in
from bertkit.text.tokenizer import Tokenizer

SUPPORTED_TASKS = ("classify",)
"""Tasks whose predictions need only one row of logits per text."""


class ExportedAnswer(Answering[Any]):
    """A predictor that runs a model exported with `bertkit export --task classify`.

    Args:
        folder: Directory that `bertkit export` wrote.
        task: Task that the exported model must have. Default: accept the task with which it was
            exported.
        precision: Precision of the computation.

    Raises:
        CheckpointError: If the graph has no head, or its task is not supported.
        ConfigError: If the model was exported for another task.
    """

    def __init__(
        self,
        folder: Path,
        task: str | type[Task[Any, Any]] | None = None,
        precision: GraphPrecision = "fp32",
    ) -> None:
        self.graph = Graph(folder, precision, LOGITS)
        record = self.graph.record
        name = recorded_task(record.settings)
        if name not in SUPPORTED_TASKS:
            has = f"the head of {name}" if name else "no head"
            raise CheckpointError(
                f"{folder}: the exported graph has {has}, but predict requires an export with "
                "--task classify; export the model again, or use the original model"
            )
        kind = find(name)
        if task is not None and (find(task) if isinstance(task, str) else task) is not kind:
            raise ConfigError(f"task: {folder} was exported for {name}; remove this option")
        self.task = kind.restore(record.labels, record.settings)
        self.columns = columns_in(record.settings)
        self.tokenizer, self.length, self.head = Tokenizer.load(folder), record.length, None
        self.graph.ready()

    def outputs(self, features: Sequence[Feature]) -> list[Outputs]:
        rows = self.graph.rows([feature.encoding for feature in features])
        return [row[None] for row in rows]
