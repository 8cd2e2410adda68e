"""Tasks: examples, what is learned from them, answers, scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import ConfigError, did_you_mean
from bertkit.registry import import_object
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Task


def find(name: str) -> type[Task[Any, Any]]:
    """A task by its name, or one from outside the package as module:Class.

    Raises: ConfigError for a name that leads to no task.
    """
    path = TASKS.paths.get(name, name)
    if ":" not in path:
        raise ConfigError(
            f"no task is named {name!r}; {did_you_mean(name, TASKS)} (your own: module:Class)"
        )
    try:
        task = import_object(path)
    except Exception as error:  # whatever the code of others raises
        if name in TASKS:
            raise
        raise ConfigError(
            f"task {name}: cannot be imported ({type(error).__name__}: {error}); fix it, or set "
            "PYTHONPATH to the directory of the module"
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
"""The task of a folder that names none, by its head."""


def recorded(settings: Mapping[str, Any]) -> str | None:
    """The task a folder's config.json names."""
    ours = settings.get("bertkit")
    record = ours.get("task") if isinstance(ours, dict) else None
    name = record.get("name") if isinstance(record, dict) else None
    return name if isinstance(name, str) else None


def name_in(settings: Mapping[str, Any], heads: Iterable[str]) -> str | None:
    """The task a folder was made for: as its config.json says, else by its head."""
    by_head = [BY_HEAD[head] for head in heads if head in BY_HEAD]
    return recorded(settings) or (*by_head, None)[0]


def outside_error(folder: Path, task: str) -> ConfigError:
    """Return the error about a model of a task that is not installed, or that no user named."""
    remedy = "set --task if you trust its code" if ":" in task else "install its package"
    return ConfigError(f"{folder}: was fine-tuned for {task}, a task outside bertkit; {remedy}")


__all__ = ["TASKS", "Task", "find", "name_in", "outside_error", "recorded"]
