"""Answers by an exported graph with the head of a task: nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.export.exported import LOGITS, Graph, Numbers
from bertkit.tasks import Task, find, recorded
from bertkit.tasks.inference import Answering
from bertkit.tasks.task import Feature, Outputs
from bertkit.tasks.trained_columns import columns_in
from bertkit.text.tokenizer import Tokenizer

ANSWERED = ("classify",)
"""Tasks whose answers need no more than a row of logits for a text."""


class ExportedAnswer(Answering[Any]):
    """A folder of `bertkit export --task classify` that answers.

    Raises: CheckpointError for one without a head, or of a task that wants the model itself.
    """

    def __init__(
        self,
        folder: Path,
        task: str | type[Task[Any, Any]] | None = None,
        precision: Numbers = "fp32",
    ) -> None:
        self.graph = Graph(folder, precision, LOGITS)
        record = self.graph.record
        name = recorded(record.settings)
        if name not in ANSWERED:
            has = f"the head of {name}" if name else "no head"
            raise CheckpointError(
                f"{folder}: an exported graph with {has}, and predict takes one of `bertkit export "
                "--task classify`; ask the model's own folder"
            )
        kind = find(name)
        if task is not None and (find(task) if isinstance(task, str) else task) is not kind:
            raise ConfigError(f"task: {folder} was exported for {name}; leave it out")
        self.task = kind.restore(record.labels, record.settings)
        self.columns = columns_in(record.settings)
        self.tokenizer, self.length, self.head = Tokenizer.load(folder), record.length, None
        self.graph.ready()

    def outputs(self, features: Sequence[Feature]) -> list[Outputs]:
        rows = self.graph.rows([feature.encoding for feature in features])
        return [row[None] for row in rows]
