"""Tasks, which can be found by their name or from the settings of a model directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import ConfigError, did_you_mean
from bertkit.registry import import_object
from bertkit.tasks.table import TASKS as TASKS
from bertkit.tasks.task import Task as Task


def find(name: str) -> type[Task[Any, Any]]:
    """Return the class of a task.

    Args:
        name: Name of the task. For a third-party task, it can also be `module:Class`.

    Raises:
        ConfigError: If the name is unknown, or the task cannot be imported.
    """
    path = TASKS.paths.get(name, name)
    if ":" not in path:
        raise ConfigError(
            f"unknown task {name!r}; {did_you_mean(name, TASKS)} (third-party task: module:Class)"
        )
    try:
        task = import_object(path)
    except Exception as error:  # Third-party code can raise any exception.
        if name in TASKS:
            raise
        raise ConfigError(
            f"task {name}: cannot be imported ({type(error).__name__}: {error}); fix the error, or "
            "set PYTHONPATH to the directory of the module"
        ) from None
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise ConfigError(f"task {name}: is not a subclass of bertkit.tasks.task.Task")
    if name in TASKS and task.name != name:
        raise ConfigError(f"task {name}: {path} has name = {task.name!r}; set it to {name!r}")
    return task


BY_HEAD = {
    "classify": "classify",
    "choose": "choose",
    "answer": "answer",
    "tag": "tag",
    "crf": "tag",
}
"""Task for each head. It is used if the `config.json` of a model does not name the task."""


def recorded_task(settings: Mapping[str, Any]) -> str | None:
    """Return the name of the task that `config.json` contains, or None."""
    section = settings.get("bertkit")
    record = section.get("task") if isinstance(section, dict) else None
    name = record.get("name") if isinstance(record, dict) else None
    return name if isinstance(name, str) else None


def task_name_of(settings: Mapping[str, Any], heads: Iterable[str]) -> str | None:
    """Return the name of a model's task: the name in `config.json`, or else the task of its head.

    Args:
        settings: Content of `config.json`.
        heads: Names of the heads of the model.

    Returns:
        The name, or None if the model has no task.
    """
    by_head = [BY_HEAD[head] for head in heads if head in BY_HEAD]
    return recorded_task(settings) or (*by_head, None)[0]


def outside_error(folder: Path, task: str) -> ConfigError:
    """Return the error for a model whose task is not installed, or is code that must be trusted."""
    remedy = "set --task if you trust its code" if ":" in task else "install its package"
    return ConfigError(f"{folder}: was fine-tuned for {task}, a task outside bertkit; {remedy}")
