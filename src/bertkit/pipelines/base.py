"""What every pipeline shares: items become work, and one engine runs it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded, load
from bertkit.checkpoint.formats import ACCELERATORS
from bertkit.checkpoint.run_directory import TUNING_FILE
from bertkit.config import Settings
from bertkit.console import say
from bertkit.engine.engine import Engine, Read
from bertkit.errors import CheckpointError, refuse_unknown
from bertkit.nn.precision import Inference, gains_by_bf16, resolve_device
from bertkit.tasks.inference import Work, batched
from bertkit.tasks.task import Feature, NoOptions
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, averaged, encode
from bertkit.text.prompts import Prompter
from bertkit.text.tokenizer import Tokenizer

BYTES_PER_NUMBER = 64
"""Bytes of a number of an answer: as Python has it, and as text."""

CACHE_TOKENS = 32_768
"""Tokens of sequences, including the tokens to generate, for which caches have space at a time."""

__all__ = [
    "BYTES_PER_NUMBER",
    "ModelPipeline",
    "Pipeline",
    "Work",
    "batched",
    "inference_device",
    "load_on",
    "open_engine",
]


class Pipeline(Protocol):
    """From items to answers. `prepare` reads items, many at once; `run` answers what it made of
    them, in any company."""

    @property
    def policies(self) -> tuple[Long, ...]:
        """What may be done with items longer than the model; the first is the default."""

    def prepare(self, items: Sequence[Any], /, *, long: Long) -> list[Work]:
        """Raises: DataError for what cannot be answered, or as `long` says."""

    def run(self, works: Sequence[Work], /) -> Iterable[Any]:
        """An answer for each."""


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
        """Return an embedding per text. Shapes: (S, D)."""

    def stream(
        self, texts: Iterable[str], *, long: Long = ..., prompt: str | None = ...
    ) -> Iterator[tuple[NDArray[np.float32], list[bool]]]:
        """Yield the embeddings of some thousand texts, and whether each was truncated."""

    def vectors(
        self, encodings: Sequence[Encoding], owner: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Return an embedding per encoding, or per owner of several."""

    def fingerprint(self) -> str:
        """Return a hash of all that determines an embedding, except prompt and precision."""


def inference_device(
    device: str, precision: Inference = "fp32", model: str | Path | Loaded | None = None
) -> str:
    """Return the device that a trained model computes on.

    auto is the device of a loaded model that is on a GPU, else a GPU if PyTorch finds one, else
    the CPU. The choice of a GPU is printed. int8 runs on the CPU.

    Raises:
        DeviceError: If the device cannot be used.
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


def load_on(model: str | Path | Loaded, device: str, revision: str | None = None) -> Loaded:
    """Load a model whose weights are on a device. A model that is already loaded is not changed.

    Raises:
        DeviceError: If the device cannot be used; before the model is loaded.
    """
    chosen = torch.device(inference_device(device, model=model))
    loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
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
    """Return an engine of a model, which several pipelines can share.

    Args:
        loaded: The model.
        precision: Precision of the computation. auto uses the fastest setting that
            `bertkit export tune` stored for this machine; without it, bf16 if the processor
            supports it.
        batch_invariant: Whether results are the same, bit for bit, in every batch.
        device: Device of the computation. Default: the device of the model.
    """
    refuse_unknown("precision", precision, get_args(Inference))
    kind = torch.device(device or next(loaded.model.parameters()).device).type
    is_tuned = kind == "cpu" and (loaded.folder / TUNING_FILE).exists()
    options: dict[str, Any] = {"batch_invariant": batch_invariant, "device": device}
    if precision == "int8" or (precision == "auto" and is_tuned):
        engine: Engine | None = ACCELERATORS["engine"](loaded, precision, **options)
        if engine is not None:
            return engine
        precision = "auto"
    if precision == "auto":
        say(f"precision: {'bf16' if gains_by_bf16(kind) else 'fp32'}")
    return Engine(loaded.model, precision=precision, **options)


class ModelPipeline:
    """Base class of the pipelines of one loaded model, whose engine computes them.

    A pipeline that defines `prediction` and `example` gets a route and a web form in servers.
    """

    policies: tuple[Long, ...] = ("error", "truncate")
    item: Any = str
    """Type of an item: str, tuple[str, str], or a Struct, of which `prepare` gets tuples."""
    prediction: Any = None
    """Type of a prediction."""
    options: type[Settings] = NoOptions
    """Keyword arguments of `prepare`, except `long`; each has a default."""
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
        """Open a model as this pipeline; for the arguments and errors see `pipeline`."""
        device = inference_device(device, precision, model)
        loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
        engine = open_engine(loaded, precision, batch_invariant=batch_invariant, device=device)
        return cls(loaded, engine, **options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.loaded!r}>"

    def _needs(self, head: str, hint: str) -> Any:
        if head not in self.loaded.model.heads:
            heads = ", ".join(self.loaded.model.heads) or "none"
            raise CheckpointError(
                f"{self.loaded.folder}: has no {head} head (heads: {heads}); {hint}"
            )
        if any(name.startswith(f"heads.{head}.") for name in self.loaded.report.fresh):
            raise CheckpointError(
                f"{self.loaded.folder}: its {head} head was never trained; {hint}"
            )
        return self.engine.model.heads[head]

    def _encoded(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        long: Long,
    ) -> list[Work]:
        read = encode(self.tokenizer, texts, pairs, length=self.loaded.length, long=long)
        return works_of(*read, len(texts))

    def _rows(self, works: Sequence[Work], read: Read) -> NDArray[np.float32]:
        """`read` of every item, its windows averaged by their length. Shapes: (S, ...)."""
        encodings, owner = encodings_of(works)
        return averaged(self.engine.rows(encodings, read), encodings, owner)


def works_of(encodings: Sequence[Encoding], owner: Sequence[int], count: int) -> list[Work]:
    """The work of so many texts, of which some encodings are windows."""
    features: list[list[Feature]] = [[] for _ in range(count)]
    for encoding, place in zip(encodings, owner, strict=True):
        features[place].append(Feature(encoding, 0))
    return [Work(each) for each in features]


def encodings_of(works: Sequence[Work]) -> tuple[list[Encoding], list[int]]:
    """Their encodings, and to which of them each belongs."""
    encodings = [f.encoding for work in works for f in work.features]
    return encodings, [place for place, work in enumerate(works) for _ in work.features]
