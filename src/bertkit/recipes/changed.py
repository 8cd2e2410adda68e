"""A model folder written again with something in it changed."""

from __future__ import annotations

from pathlib import Path

from bertkit.checkpoint.folder import Loaded, save
from bertkit.models.model import Model
from bertkit.text.tokenizer import Tokenizer

KEPT = ("problem_type",)
"""What config.json says of a task beside bertkit's own."""


def save_changed(
    loaded: Loaded,
    model: Model,
    out: Path,
    *,
    tokenizer: Tokenizer | None = None,
    length: int | None = None,
) -> None:
    """Write `model` with the labels and the task that its folder had, and another tokenizer or
    length if given."""
    settings = {name: loaded.settings[name] for name in KEPT if name in loaded.settings}
    task = loaded.settings.get("bertkit", {}).get("task")
    if task is not None:
        settings["bertkit"] = {"task": task}
    save(
        out,
        model,
        tokenizer or loaded.tokenizer,
        loaded.family,
        labels=loaded.labels,
        settings=settings,
        length=length or loaded.length,
        pooling=loaded.pooling,
    )
