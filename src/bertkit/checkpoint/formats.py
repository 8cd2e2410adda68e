"""Formats of models. Each format is identified by its files, and loaded by a class.

This module does not import torch, because exported models can be used without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.checkpoint.hub import resolve
from bertkit.errors import CheckpointError
from bertkit.registry import Registry
from bertkit.storage import read_json

if TYPE_CHECKING:
    from bertkit.nn.precision import Inference

FORMATS = Registry(
    "formats",
    {
        "adapter": "bertkit.pipelines.transformer_format:TransformerFormat",
        "transformer": "bertkit.pipelines.transformer_format:TransformerFormat",
        "sentence-transformers": "bertkit.pipelines.transformer_format:TransformerFormat",
        "tensorflow": "bertkit.checkpoint.formats:TensorFlowFormat",
        "run": "bertkit.checkpoint.formats:RunFormat",
    },
)
"""Subclasses of `ModelFormat` by name."""

ACCELERATORS: Mapping[str, Callable[..., Any]] = Registry("accelerators", {})
"""Functions that return a faster `engine` or `embedder` for a model, or None if there is none."""

SINGLE_FILES: Mapping[str, str] = {"gguf": "*.gguf", "word-vectors": "*"}
"""Formats that consist of one file, each with a pattern that its file name matches."""

DIRECTORIES: Mapping[str, tuple[str, ...]] = {
    "exported": ("export.json",),
    "gliner": ("gliner_config.json",),
    "adapter": ("adapter_config.json", "!model.safetensors", "!model.safetensors.index.json"),
    "sparse-encoder": ("*_SpladePooling",),
    "transformer": ("config.json",),
    "sentence-transformers": ("modules.json",),
    "elmo": ("*options.json",),
    "tensorflow": ("*.ckpt.index",),
    "run": ("run.json",),
    "store": ("bertkit.json",),
}
"""Formats that are directories, each with the files that it must contain.

A directory must not contain a file that is marked with "!". The first format that matches is used.
If a directory matches "transformer" and its `model_type` is the name of another format, that
format is used.
"""


def format_of(path: Path) -> str | None:
    """Return the name of the format of a file or directory, or None if it is unknown."""
    if path.is_file():
        return next(name for name, pattern in SINGLE_FILES.items() if path.match(pattern))
    for name, patterns in DIRECTORIES.items():
        if all(_contains(path, p.removeprefix("!")) != p.startswith("!") for p in patterns):
            return _format_of_settings(path / "config.json") if name == "transformer" else name
    return None


def _format_of_settings(path: Path) -> str:
    with contextlib.suppress(CheckpointError):
        match read_json(path, CheckpointError, ""):
            case {"model_type": str(kind)} if kind in FORMATS:
                return kind
    return "transformer"


def _contains(folder: Path, pattern: str) -> bool:
    return any(folder.glob(pattern)) if "*" in pattern else (folder / pattern).exists()


def open_format(model: Any, revision: str | None = None) -> ModelFormat:
    """Find the format of a model, and return an object that can load the model.

    Args:
        model: Path or hub id of a model, or a `Loaded` model.
        revision: Branch, tag, or commit of a model on the hub.

    Raises:
        CheckpointError: If the model does not exist, or its format is unknown.
    """
    if not isinstance(model, str | Path) and hasattr(model, "folder"):
        loaded: ModelFormat = model.format or FORMATS["transformer"](model.folder, model)
        return loaded
    path = resolve(model, revision)
    name = format_of(path)
    if name is None:
        raise CheckpointError(
            f"{path}: no model found; pass a directory with config.json, weights, and a tokenizer"
        )
    opened: ModelFormat = FORMATS[name](path)
    return opened


@dataclass(frozen=True)
class LoadSettings:
    """Settings for loading a model for inference. A format uses only the settings that it needs."""

    precision: Inference = "fp32"
    device: str = "auto"
    task: Any = None
    """Name or class of a task. Default: the task that the model was fine-tuned for."""
    embedding_task: str | None = None
    """Task to use for an embedding model, or for an encoder that was not fine-tuned for a task."""
    pooling: str | None = None
    """Pooling of the embeddings: mean, cls, or max. Default: the pooling of the model."""
    normalize: bool | None = None
    """Whether embeddings are scaled to length 1. Default: the setting of the model."""
    batch_invariant: bool = False
    """Whether the embedding of a text must be bit-for-bit the same in every batch."""
    trusted: Mapping[str, Any] = field(default_factory=dict)
    """Tasks that are not part of bertkit and whose code may run, by their full names."""


class ModelFormat:
    """Base class of formats. An object represents a model that is not loaded yet.

    A subclass overrides the methods that its format supports. The other methods raise
    CheckpointError. A method also raises CheckpointError if a file is invalid, and ConfigError if
    the format does not support a setting.
    """

    noun = ""
    """Name of the format with an article, for error messages."""
    remedy = ""
    """End of the error message if a method is not supported, which states what to do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mismatch(self, expected: str, remedy: str = "") -> CheckpointError:
        """Return the error to raise if a caller needs a different kind of model."""
        todo = remedy or self.remedy
        return CheckpointError(f"{self.path}: expected {expected}, got {self.noun}; {todo}")

    def stored(self) -> Any:
        """Return the settings, weights, and tokenizer of a Transformer model."""
        raise self.mismatch("a Transformer")

    def trainable(self) -> Any:
        """Return the settings, weights, and tokenizer of a model that is going to be fine-tuned.

        Weights that are missing in the files are newly initialized.
        """
        return self.stored()

    def load_embedder(self, settings: LoadSettings) -> Any:
        """Load the model for computing text embeddings."""
        raise self.mismatch("a text embedding model")

    def load_task(self, settings: LoadSettings) -> Any:
        """Load the pipeline of the task that the model was fine-tuned for."""
        raise self.mismatch("a fine-tuned model")

    def load_predictor(self, settings: LoadSettings) -> Any:
        """Load the model for predicting examples of the task that it was fine-tuned for."""
        return self.load_task(settings)

    def load_frozen(self, settings: LoadSettings) -> Any:
        """Load the model for computing the hidden states of the words in a text."""
        raise self.mismatch("a text model")

    def load_words(self, settings: LoadSettings) -> Any:
        """Load the model for computing vectors of single words."""
        return self.load_frozen(settings)

    def load_pipelines(self, settings: LoadSettings) -> Any:
        """Load the model and return all pipelines that it supports."""
        raise self.mismatch("a model that can be served")

    def info(self) -> dict[str, Any]:
        """Return the size of the model, its number of parameters, its heads, and its labels."""
        raise self.mismatch("a model with weights")


class TensorFlowFormat(ModelFormat):
    """TensorFlow checkpoint, which bertkit cannot load."""

    noun = "a TensorFlow checkpoint"
    remedy = (
        "use the same model from the hub, or convert it with the script "
        "convert_bert_original_tf_checkpoint_to_pytorch of transformers 4, then "
        "save_pretrained(folder)"
    )


class RunFormat(ModelFormat):
    """Directory of a training run that has not saved a model yet."""

    noun = "a run that has not saved a model yet"
    remedy = "continue the run with --resume"
