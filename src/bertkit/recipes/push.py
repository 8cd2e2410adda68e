"""Publish a model folder on the hub: its weights, its settings and its card."""

from __future__ import annotations

from pathlib import Path

from bertkit.checkpoint import hub
from bertkit.checkpoint.directory import load
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.recipes.model_card import FILE


def push(
    folder: Path,
    name: str,
    /,
    *,
    private: bool = False,
    message: str = "Model by bertkit",
) -> str:
    """Upload a model directory to the Hugging Face hub.

    Its .safetensors, .json and .txt files and its card go, and are named. The run's records do not,
    as they name files of this disk, nor do its errors, which are texts of the data.
    Raises: CheckpointError where it is no model, or the hub refuses it.

    Args:
        folder: Model directory. It must load.
        name: Repository on the hub, such as me/my-model. It is created if it does not exist.
        private: Whether a new repository is private.
        message: Commit message.
    """
    if not hub.ID.fullmatch(name) or "/" not in name:
        raise ConfigError(f"{name}: no name on the hub; it is like me/my-model")
    load(folder)  # a model that does not open is not published
    files = hub.published(folder)
    if not (folder / FILE).exists():
        say(f"{folder}: has no card ({FILE}); the hub will show the model without a word")
    say(f"{name}: {', '.join(files)}")
    return hub.push(folder, name, files, private=private, message=message)
