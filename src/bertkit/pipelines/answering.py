"""Functions that load fine-tuned models as pipelines for their tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit import tasks
from bertkit.checkpoint.directory import Loaded, load
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.console import quietly, say
from bertkit.errors import CheckpointError
from bertkit.models.model import HEADS
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import open_engine
from bertkit.pipelines.task import TaskPipeline
from bertkit.tasks import Task, recorded_task, task_name_of
from bertkit.tasks.capabilities import UsesDecoder, UsesPooling
from bertkit.tasks.task import full_name


def answering(
    model: str | Path | Loaded,
    task: str | type[Task[Any, Any]] | None = None,
    *,
    precision: Inference = "fp32",
    revision: str | None = None,
    device: str = "auto",
    embedding_task: str | None = None,
) -> TaskPipeline[Any]:
    """Load a fine-tuned model as a pipeline for its task, or for another task.

    Args:
        model: Directory or hub id of a fine-tuned model in any format, or a loaded model.
        task: Name or class of the task. Default: the task in the model's config.json. The code of a
            third-party task runs only if you set this argument.
        precision: Precision of the computation.
        revision: Revision of a hub id.
        device: auto, cpu, or a CUDA device such as cuda:0; see `inference_device`.
        embedding_task: Task to use if the model is an embedding model, or an encoder that was not
            fine-tuned for a task.

    Raises:
        CheckpointError: If the model does not have the head of the task.
        ConfigError: If the task is unknown, or a setting is not supported.
    """
    settings = LoadSettings(precision, device, task, embedding_task)
    opened: TaskPipeline[Any] = open_format(model, revision).load_task(settings)
    return opened


def task_pipeline(loaded: Loaded, settings: LoadSettings) -> TaskPipeline[Any]:
    """Create the pipeline that runs a Transformer for its task, or for another task.

    Args:
        loaded: The model.
        settings: Task, embedding task, precision, and device; see `answering`.

    Raises:
        CheckpointError: If the model does not have the head of the task.
        ConfigError: If the task is unknown, or if `settings` do not name a third-party task.
    """
    task, embedding_task = settings.task, settings.embedding_task
    if task is None:
        task = task_name_of(loaded.settings, loaded.model.heads)
        embeds = loaded.pooling is not None or "lm" not in loaded.model.heads
        if task is None and embeds and embedding_task is not None:
            say(f"{loaded.folder}: no task found; using the embeddings for {embedding_task}")
            task = embedding_task
        if task is None:
            raise CheckpointError(
                f"{loaded.folder}: the model was not fine-tuned; run `bertkit finetune`, or use "
                "`bertkit embed`, `bertkit generate`, or `bertkit predict --pipeline NAME`"
            )
        if task not in tasks.TASKS:
            raise tasks.outside_error(loaded.folder, task)
    kind = tasks.find(task) if isinstance(task, str) else task
    made_for = recorded_task(loaded.settings)
    if made_for is not None and made_for != full_name(kind):
        raise CheckpointError(
            f"{loaded.folder}: the model was fine-tuned for {made_for}, not for {full_name(kind)}; "
            f"use task {made_for}, or fine-tune the model"
        )
    try:
        restored: Task[Any, Any] = kind.restore(loaded.labels, loaded.settings)
        if isinstance(restored, UsesPooling):
            restored = restored.with_pooling(loaded.pooling)
    except CheckpointError as error:
        raise CheckpointError(f"{loaded.folder}: {error}") from None
    if restored.head not in HEADS:
        heads = {restored.head: restored.build_head}
        with quietly():  # The first `load` has logged all messages.
            loaded = load(loaded.folder, heads=heads, labels=loaded.labels)
    if isinstance(restored, UsesDecoder):
        restored = restored.with_decoder(loaded.begin, loaded.target)
    engine = open_engine(loaded, settings.precision, device=settings.device)
    return TaskPipeline(restored, loaded, engine)
