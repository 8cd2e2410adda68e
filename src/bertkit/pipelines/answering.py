"""A fine-tuned folder, opened to answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertkit import tasks
from bertkit.checkpoint.directory import Loaded, load
from bertkit.checkpoint.hub import resolve
from bertkit.console import quietly, say
from bertkit.errors import CheckpointError, ConfigError
from bertkit.models.model import HEADS
from bertkit.nn.precision import Inference, check_cpu
from bertkit.pipelines.base import inference_device, open_engine
from bertkit.pipelines.elmo_task import ElmoAnswer, is_elmo_task
from bertkit.pipelines.task import TaskPipeline
from bertkit.tasks import Task, name_in, recorded


def answering(
    model: str | Path | Loaded,
    task: str | type[Task[Any, Any]] | None = None,
    *,
    precision: Inference = "fp32",
    revision: str | None = None,
    device: str = "auto",
    embedding_task: str | None = None,
) -> TaskPipeline[Any]:
    """Load a fine-tuned model for its task, or for the task that is named.

    `embedding_task` is the task of an embedding model, or of an encoder without a task.
    Raises: CheckpointError when it holds no such head, ConfigError for an unknown task. A task
    from outside the package is never imported because a folder says so: name it. For
    `device` see `inference_device`; a model that was trained on an ELMo runs on the CPU.
    """
    if not isinstance(model, Loaded) and is_elmo_task(folder := resolve(model, revision)):
        if precision != "fp32":
            raise ConfigError("precision: what was learned on an ELMo has fp32 alone; leave it out")
        check_cpu(device, "a model that was trained on an ELMo")
        return ElmoAnswer(folder, task)
    device = inference_device(device, precision, model)
    loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
    if task is None:
        task = name_in(loaded.settings, loaded.model.heads)
        embeds = loaded.pooling is not None or "lm" not in loaded.model.heads
        if task is None and embeds and embedding_task is not None:
            say(f"{loaded.folder}: has no task; its embeddings are used for {embedding_task}")
            task = embedding_task
        if task is None or (task not in tasks.TASKS and ":" not in task):
            raise CheckpointError(
                f"{loaded.folder}: was fine-tuned for no task; use `bertkit finetune` first"
            )
        if ":" in task:
            raise ConfigError(
                f"{loaded.folder}: made for the task {task}, whose code is not bertkit's; if you "
                f"trust it, name it: --task {task}"
            )
    kind = tasks.find(task) if isinstance(task, str) else task
    made_for = recorded(loaded.settings)
    if made_for is not None and made_for != kind.full_name():
        raise CheckpointError(
            f"{loaded.folder}: was fine-tuned for {made_for}, not for {kind.full_name()}; ask it "
            f"that, or fine-tune it"
        )
    try:
        restored = kind.restore(loaded.labels, loaded.settings).with_pooling(loaded.pooling)
    except CheckpointError as error:
        raise CheckpointError(f"{loaded.folder}: {error}") from None
    if restored.head not in HEADS:
        heads = {restored.head: restored.build_head}
        with quietly():  # what is to be said of the folder has been
            loaded = load(loaded.folder, heads=heads, labels=loaded.labels)
    restored = restored.with_decoder(loaded.begin, loaded.target)
    return TaskPipeline(restored, loaded, open_engine(loaded, precision, device=device))
