"""File of a model's int8 quantization, and of its effect on the embeddings."""

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
    """The quality of a quantized model, measured on texts that were not used for calibration.

    Attributes:
        fingerprint: Fingerprint of the model before quantization.
        texts: Number of texts.
        lowest_cosine: Lowest cosine similarity of an int8 and an fp32 embedding.
        mean_cosine: Mean cosine similarity of int8 and fp32 embeddings.
        left: Names of the layers that stay in bf16.
    """

    fingerprint: str
    texts: int
    lowest_cosine: float
    mean_cosine: float
    left: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True):
    quality: Quality
    steps: dict[str, tuple[Annotated[float, Meta(gt=0)], Annotated[int, Meta(ge=0, le=255)]]]
    """Scale and zero point of each layer's input. The tensor with the same name has the factors."""


def write_int8(folder: Path, inputs: Mapping[str, Inputs], quality: Quality) -> None:
    """Write `FILE` into a model directory. The weights do not change.

    Args:
        folder: The model directory.
        inputs: Quantization of the inputs by layer name.
        quality: Quality of the quantized model.
    """
    record = _Record(quality, {name: (i.scale, i.zero) for name, i in inputs.items()})
    tensors = {name: i.factor.contiguous() for name, i in inputs.items()}
    with writing(folder / FILE) as partial:
        save_file(tensors, partial, metadata={"bertkit": msgspec.json.encode(record).decode()})


def read_int8(folder: Path, fingerprint: str) -> tuple[dict[str, Inputs], Quality]:
    """Read the quantization of a model.

    Args:
        folder: The model directory.
        fingerprint: Fingerprint of the model.

    Returns:
        The quantization of the inputs by layer name, and the quality.

    Raises:
        CheckpointError: If the file does not exist, is damaged, or belongs to other weights.
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
            f"{path}: the file belongs to other weights; quantize the model again"
        )
    return inputs, record.quality


def _is_valid(inputs: Inputs) -> bool:
    """Return whether all factors and scales are finite, and the factors greater than 0."""
    factor = inputs.factor
    finite = factor.is_floating_point() and factor.ndim == 1 and math.isfinite(inputs.scale)
    return finite and bool((factor.isfinite() & (factor > 0)).all())
