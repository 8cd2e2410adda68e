"""Base classes of pipelines, and functions that load a model for inference."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertkit.checkpoint.directory import Loaded, load
from bertkit.checkpoint.formats import ACCELERATORS
from bertkit.checkpoint.run_directory import TUNING_FILE
from bertkit.config import Settings
from bertkit.console import say
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, check_choice
from bertkit.nn.precision import Inference, bf16_is_faster, resolve_device
from bertkit.synonyms import check_names
from bertkit.tasks.inference import Work
from bertkit.tasks.task import Feature, NoOptions
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, average_windows, encode
from bertkit.text.prompts import Prompter
from bertkit.text.tokenizer import Tokenizer

BYTES_PER_NUMBER = 64
"""Estimated number of bytes that a number in a prediction needs, as a Python object and as JSON."""

CACHE_TOKENS = 32_768
"""Maximum number of tokens in key/value caches at a time, including tokens yet to be generated."""


class Pipeline(Protocol):
    """Interface of pipelines. `prepare` encodes items, and `run` computes their predictions.

    A server can pass the prepared items of several requests to one call of `run`.
    """

    @property
    def policies(self) -> tuple[Long, ...]:
        """Supported policies for items that exceed the maximum length. The default is first."""

    def prepare(self, items: Sequence[Any], /, *, long: Long) -> list[Work]:
        """Encode items for `run`.

        Args:
            items: The items.
            long: Policy for items that exceed the maximum length of the model.

        Returns:
            The encodings of each item.

        Raises:
            DataError: If an item is not valid, or if it is too long and `long` is "error".
        """

    def run(self, works: Sequence[Work], /) -> Iterable[Any]:
        """Compute one prediction for each prepared item."""


class Embedder(Protocol):
    """Model that computes embeddings of texts."""

    tokenizer: Tokenizer
    prompt: Prompter
    dimension: int
    length: int
    """Maximum number of tokens of a text."""

    def __call__(
        self, texts: Sequence[str], *, long: Long = ..., prompt: str | None = ...
    ) -> NDArray[np.float32]:
        """Compute one embedding per text. Shapes: returns (S, D)."""

    def stream(
        self, texts: Iterable[str], *, long: Long = ..., prompt: str | None = ...
    ) -> Iterator[tuple[NDArray[np.float32], list[bool]]]:
        """Compute embeddings in chunks of a few thousand texts.

        Yields:
            The embeddings of a chunk of texts, and whether each text was truncated.
        """

    def vectors(
        self, encodings: Sequence[Encoding], owner: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Compute one embedding per encoding or, if `owner` is given, one per text.

        Args:
            encodings: Encodings of texts, or of their overlapping windows.
            owner: Index of the text that each encoding belongs to. The embedding of a text is the
                average over its windows.
        """

    def fingerprint(self) -> str:
        """Return a hash of everything that embeddings depend on, except prompt and precision."""


def inference_device(
    device: str, precision: Inference = "fp32", model: str | Path | Loaded | None = None
) -> str:
    """Select the device for inference.

    Args:
        device: Name of a PyTorch device, or "auto". "auto" selects the GPU that contains the loaded
            model. Otherwise, it selects a GPU if one is available (and logs this), or else the CPU.
        precision: Precision of the computation. If it is "int8", "auto" selects the CPU.
        model: The model, which may be loaded already.

    Returns:
        Name of the device.

    Raises:
        DeviceError: If the device is not available.
    """
    if device == "auto" and precision == "int8":
        return "cpu"
    if device == "auto" and isinstance(model, Loaded):
        current = next(model.model.parameters()).device
        if current.type != "cpu":
            return str(current)
    chosen = resolve_device(device)
    if device == "auto" and chosen != "cpu":
        say(f"device: {chosen}")
    return chosen


def load_on(model: str | Path | Loaded, device: str) -> Loaded:
    """Load a model and move it to a device.

    Args:
        model: Model directory, name of a model on the Hugging Face Hub, or a loaded model. A loaded
            model is copied if it is on another device.
        device: Name of a PyTorch device, or "auto".

    Returns:
        The loaded model.

    Raises:
        DeviceError: If the device is not available. This is checked before the model is loaded.
        CheckpointError: If the model cannot be loaded.
    """
    chosen = torch.device(inference_device(device, model=model))
    loaded = model if isinstance(model, Loaded) else load(model)
    if next(loaded.model.parameters()).device == chosen:
        return loaded
    network = copy.deepcopy(loaded.model) if loaded is model else loaded.model
    return replace(loaded, model=network.to(chosen))


def open_engine(
    loaded: Loaded,
    precision: Inference = "fp32",
    *,
    batch_invariant: bool = False,
    device: str | None = None,
) -> Engine:
    """Build an inference engine for a model. Several pipelines can share the engine.

    Args:
        loaded: The model.
        precision: Precision of the computation. "auto" uses the fastest configuration that
            `bertkit export tune` stored for this machine. Without such a configuration, "auto" uses
            bf16 if it is faster on the device, or else fp32.
        batch_invariant: Whether the outputs for a text are bit-identical in every batch, which is
            slower.
        device: Device of the computation. Default: the device of the model.

    Returns:
        The engine.

    Raises:
        ConfigError: If the precision is unknown.
    """
    check_choice("precision", precision, get_args(Inference))
    device_type = torch.device(device or next(loaded.model.parameters()).device).type
    is_tuned = device_type == "cpu" and (loaded.folder / TUNING_FILE).exists()
    options: dict[str, Any] = {"batch_invariant": batch_invariant, "device": device}
    if precision == "int8" or (precision == "auto" and is_tuned):
        engine: Engine | None = ACCELERATORS["engine"](loaded, precision, **options)
        if engine is not None:
            return engine
        precision = "auto"
    if precision == "auto":
        say(f"precision: {'bf16' if bf16_is_faster(device_type) else 'fp32'}")
    return Engine(loaded.model, precision=precision, **options)


class ModelPipeline:
    """Base class of pipelines that run one loaded model.

    If a pipeline defines `prediction` and `example`, servers add a route and a web form for it.

    Args:
        loaded: The model.
        engine: Engine of the model, or the precision of a new engine.
    """

    policies: tuple[Long, ...] = ("error", "truncate")
    item: Any = str
    """Type of an item: str, tuple[str, str], or a Struct, which is passed to `prepare` as a tuple.
    """
    prediction: Any = None
    """Type of a prediction."""
    options: type[Settings] = NoOptions
    """Keyword arguments of `prepare` except `long`, as a type of settings with default values."""
    example: Any = None
    """Example of an item."""

    def __init__(self, loaded: Loaded, engine: Engine | Inference) -> None:
        self.loaded, self.tokenizer = loaded, loaded.tokenizer
        self.engine = engine if isinstance(engine, Engine) else open_engine(loaded, engine)

    @classmethod
    def open(
        cls,
        model: str | Path | Loaded,
        *,
        precision: Inference = "fp32",
        device: str = "auto",
        revision: str | None = None,
        batch_invariant: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model into this pipeline. For the arguments and errors, see `bertkit.pipeline`."""
        cls.check_options(options)
        device = inference_device(device, precision, model)
        loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
        engine = open_engine(loaded, precision, batch_invariant=batch_invariant, device=device)
        return cls(loaded, engine, **options)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Check that the pipeline supports the options of `open`, before the model is loaded.

        Args:
            options: The options, by name.

        Raises:
            ConfigError: If the pipeline does not support an option.
        """
        # The first two parameters of a pipeline are the model and its engine.
        names = ["precision", "device", "revision", *[*inspect.signature(cls).parameters][2:]]
        check_names(cls.__name__, options, names)

    def sequences_per_item(self, **options: Any) -> int:
        """Return how many sequences `prepare` creates for an item with these options."""
        return 1

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.loaded!r}>"

    def _get_head(self, head: str, hint: str) -> Any:
        """Return a head of the model. Raise CheckpointError if it is missing or was not trained."""
        if head not in self.loaded.model.heads:
            heads = ", ".join(self.loaded.model.heads) or "none"
            raise CheckpointError(
                f"{self.loaded.folder}: the model has no {head} head (heads: {heads}); {hint}"
            )
        if any(name.startswith(f"heads.{head}.") for name in self.loaded.report.fresh):
            raise CheckpointError(
                f"{self.loaded.folder}: the {head} head was never trained; {hint}"
            )
        return self.engine.model.heads[head]

    def _encode(self, texts: Sequence[str], pairs: Sequence[str] | None, long: Long) -> list[Work]:
        encodings = encode(self.tokenizer, texts, pairs, length=self.loaded.length, long=long)
        return works_of(*encodings, len(texts))

    def _compute(self, works: Sequence[Work], head: nn.Module) -> NDArray[np.float32]:
        """Compute the outputs of a head for each item, in fp32.

        The outputs of the windows of an item are averaged, with weights proportional to their
        lengths.

        Shapes:
            returns: (S, L).
        """
        encodings, owner = encodings_of(works)
        rows = self.engine.run(encodings, lambda m, batch: head(m.states(batch), batch).float())
        return average_windows(np.concatenate(rows), encodings, owner)


def works_of(encodings: Sequence[Encoding], owner: Sequence[int], count: int) -> list[Work]:
    """Group encodings by text.

    Args:
        encodings: Encodings of texts, or of their overlapping windows.
        owner: Index of the text that each encoding belongs to.
        count: Number of texts.

    Returns:
        The encodings of each text.
    """
    features: list[list[Feature]] = [[] for _ in range(count)]
    for encoding, index in zip(encodings, owner, strict=True):
        features[index].append(Feature(encoding, 0))
    return [Work(group) for group in features]


def encodings_of(works: Sequence[Work]) -> tuple[list[Encoding], list[int]]:
    """Return all encodings, and the index of the item that each encoding belongs to."""
    encodings = [f.encoding for work in works for f in work.features]
    return encodings, [index for index, work in enumerate(works) for _ in work.features]
