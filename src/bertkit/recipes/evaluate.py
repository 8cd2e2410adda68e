"""Score a fine-tuned folder on a labelled file."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bertkit.errors import CheckpointError, DataError
from bertkit.pipelines import Classify as Pipeline
from bertkit.tasks.classify import Classify, Example


def evaluate(pipeline: Pipeline, rows: Sequence[Example], *, name: str) -> dict[str, float]:
    """The task's scores on these rows; rows longer than the model are cut.

    Raises: DataError for a label the model does not know, CheckpointError for a head whose
    weights were never trained.
    """
    fresh = [w for w in pipeline.loaded.report.fresh if w.startswith("heads.classify")]
    if fresh:
        raise CheckpointError(
            f"{pipeline.loaded.folder}: its classify head was never trained; fine-tune it first"
        )
    if not rows:
        raise DataError(f"{name}: no rows to score")
    task = Classify(pipeline.loaded.labels)
    for row in rows:
        task.target(row, name)
    pairs = [row.pair or "" for row in rows] if rows[0].pair is not None else None
    outputs, cut = pipeline.outputs([row.text for row in rows], pairs, long="truncate")
    scores = task.score(torch.from_numpy(outputs), rows)
    return {**scores, "rows": len(rows), "truncated": sum(cut)}
