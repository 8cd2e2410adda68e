"""Upload of a model directory to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from bertkit.checkpoint import hub
from bertkit.checkpoint.directory import load
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.recipes.model_card import FILE


def push(
    folder: Path, name: str, /, *, private: bool = False, message: str = "Model by bertkit"
) -> str:
    """Upload a model directory to the Hugging Face hub.

    The weights, the .json and .txt files, and the model card are uploaded, and their names are
    printed. Records of the run are not uploaded, because they contain paths of this machine.
    Reports of wrong predictions are not uploaded, because they contain texts of the data.

    Args:
        folder: Model directory.
        name: Repository on the hub, such as me/my-model. It is created if it does not exist.
        private: Whether the repository is private, if it is created.
        message: Commit message.

    Returns:
        The URL of the repository or commit.

    Raises:
        ConfigError: If `name` is not a valid repository name.
        CheckpointError: If the directory does not contain a model, or the hub rejects the upload.
    """
    if not hub.ID.fullmatch(name) or "/" not in name:
        raise ConfigError(f"{name}: not a valid repository name; use a name such as me/my-model")
    load(folder)  # Loading the model checks it before it is published.
    files = hub.published(folder)
    if not (folder / FILE).exists():
        say(f"{folder} does not contain a model card ({FILE}); the hub page will be empty")
    say(f"{name}: {', '.join(files)}")
    return hub.push(folder, name, files, private=private, message=message)
