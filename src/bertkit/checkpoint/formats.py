"""Formats of models: the files that identify each format, and the class that loads it.

Nothing here imports torch, because exported models are used without it.
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
"""Functions that load a faster `engine` or `embedder` of a model, or return None."""

SINGLE_FILES: Mapping[str, str] = {"gguf": "*.gguf", "word-vectors": "*"}
"""Name patterns of the formats that are one file."""

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
"""Files of the formats that are directories. A file after "!" must not exist.

The first format that matches is used. A "transformer" whose `model_type` is the name of another
format has that format.
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
    """Return the format of a model, whose methods load the model for different uses.

    Args:
        model: Path or hub id of a model, or a `Loaded` model.
        revision: Revision of a hub id.

    Raises:
        CheckpointError: If there is no model, or its format is unknown.
    """
    if not isinstance(model, str | Path) and hasattr(model, "folder"):
        loaded: ModelFormat = FORMATS["transformer"](model.folder, model)
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
    """How a model is loaded for inference; each caller sets what it needs."""

    precision: Inference = "fp32"
    device: str = "auto"
    task: Any = None
    """Name or class of a task. Default: the task that the model was fine-tuned for."""
    embedding_task: str | None = None
    """Task of an embedding model, or of an encoder without a task."""
    pooling: str | None = None
    """mean, cls, or max. Default: the pooling of the model."""
    normalize: bool | None = None
    """Whether embeddings have length 1. Default: as the model specifies."""
    batch_invariant: bool = False
    """Whether a text has the same embedding, bit for bit, in every batch."""
    trusted: Mapping[str, Any] = field(default_factory=dict)
    """Tasks from outside the package whose code may run, by their full names."""


class ModelFormat:
    """Model of one format, not loaded yet; a format overrides the methods that it supports.

    Each method raises CheckpointError if the format does not support it, or the files are invalid,
    and ConfigError if it does not support a setting.
    """

    noun = ""
    """Name of the format in messages, with an article."""
    remedy = ""
    """What to do if the format does not support what a caller needs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mismatch(self, expected: str, remedy: str = "") -> CheckpointError:
        """Return the error of a caller that needs another format."""
        todo = remedy or self.remedy
        return CheckpointError(f"{self.path}: expected {expected}, got {self.noun}; {todo}")

    def stored(self) -> Any:
        """Return the settings, weights, and tokenizer of a Transformer."""
        raise self.mismatch("a Transformer")

    def trainable(self) -> Any:
        """Return the settings, weights, and tokenizer of a model to fine-tune.

        Missing weights are newly initialized.
        """
        return self.stored()

    def load_embedder(self, settings: LoadSettings) -> Any:
        """Load the model to compute embeddings of texts."""
        raise self.mismatch("a model of text embeddings")

    def load_task(self, settings: LoadSettings) -> Any:
        """Load the pipeline of the task that the model was fine-tuned for."""
        raise self.mismatch("a fine-tuned model")

    def load_predictor(self, settings: LoadSettings) -> Any:
        """Load the model to predict examples of the task that it was fine-tuned for."""
        return self.load_task(settings)

    def load_frozen(self, settings: LoadSettings) -> Any:
        """Load the model to compute states of the words of texts."""
        raise self.mismatch("a model of texts")

    def load_words(self, settings: LoadSettings) -> Any:
        """Load the model to compute states of single words."""
        return self.load_frozen(settings)

    def load_neighbors(self) -> Any:
        """Load a function of a word and a number N that returns its N most similar words."""
        raise self.mismatch("a file of word vectors")

    def load_pipelines(self, settings: LoadSettings) -> Any:
        """Load the model with all pipelines that it supports."""
        raise self.mismatch("a model that can be served")

    def info(self) -> dict[str, Any]:
        """Return the shape, number of parameters, heads, and labels."""
        raise self.mismatch("a model with weights")


class TensorFlowFormat(ModelFormat):
    """Checkpoint of TensorFlow, which bertkit does not read."""

    noun = "a TensorFlow checkpoint"
    remedy = (
        "use the same model from the hub, or convert it with the script "
        "convert_bert_original_tf_checkpoint_to_pytorch of transformers 4, then "
        "save_pretrained(folder)"
    )


class RunFormat(ModelFormat):
    """Directory of a run that has not written a model yet."""

    noun = "a run without a model yet"
    remedy = "continue it with --resume"
