"""File that stores a model's int8 quantization and how much it changes the embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from safetensors.torch import save_file

from bertkit.checkpoint.weights import read_file
from bertkit.errors import CheckpointError
from bertkit.extensions.export.int8_layers import Inputs
from bertkit.storage import from_json, writing

FILE = "int8.safetensors"


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The quality of a quantized model on texts that were not used to calibrate or select layers.

    Attributes:
        fingerprint: Fingerprint of the model that was quantized.
        texts: Number of texts on which the quality was measured.
        lowest_cosine: Lowest cosine similarity between the int8 and fp32 embeddings of a text.
        mean_cosine: Mean cosine similarity between the int8 and fp32 embeddings of a text.
        left: Names of the layers that are not quantized.
    """

    fingerprint: str
    texts: int
    lowest_cosine: float
    mean_cosine: float
    left: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True):
    quality: Quality
    steps: dict[str, tuple[Annotated[float, Meta(gt=0)], Annotated[int, Meta(ge=0, le=255)]]]
    """Scale and zero point of each layer's input. The tensor with the layer's name contains the
    factors."""


def write_int8(folder: Path, inputs: Mapping[str, Inputs], quality: Quality) -> None:
    """Write `FILE` to a model directory, whose weights stay unchanged.

    Args:
        folder: The model directory.
        inputs: Quantization of the inputs by layer name.
        quality: Measured quality of the quantized model.
    """
    record = _Record(quality, {name: (i.scale, i.zero) for name, i in inputs.items()})
    tensors = {name: i.factor.contiguous() for name, i in inputs.items()}
    with writing(folder / FILE) as partial:
        save_file(tensors, partial, metadata={"bertkit": msgspec.json.encode(record).decode()})


def read_int8(folder: Path, fingerprint: str) -> tuple[dict[str, Inputs], Quality]:
    """Read the int8 quantization of a model.

    Args:
        folder: The model directory.
        fingerprint: Fingerprint of the model.

    Returns:
        The quantization of the input of each layer, by layer name, and the measured quality.

    Raises:
        CheckpointError: If the file does not exist, is damaged, or was made for other weights.
    """
    path = folder / FILE
    if not path.exists():
        raise CheckpointError(f"{folder}: int8 layers not found; run `bertkit export int8`")
    factors, notes = read_file(path, "quantize the model again")
    try:
        record = msgspec.convert(from_json(notes.get("bertkit", "").encode()), type=_Record)
        inputs = {name: Inputs(factors[name], *step) for name, step in record.steps.items()}
        if not all(map(_is_valid, inputs.values())):
            raise ValueError("factors and scales must be greater than 0")
    except (ValueError, KeyError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); quantize the model again") from None
    if record.quality.fingerprint != fingerprint:
        raise CheckpointError(
            f"{path}: the file was made for other weights; quantize the model again"
        )
    return inputs, record.quality


def _is_valid(inputs: Inputs) -> bool:
    """Return whether all factors and scales are finite, and all factors are greater than 0."""
    factor = inputs.factor
    finite = factor.is_floating_point() and factor.ndim == 1 and math.isfinite(inputs.scale)
    return finite and bool((factor.isfinite() & (factor > 0)).all())
