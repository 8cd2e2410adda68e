"""How a folder's model computes in integers, and how much that costs in quality."""

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
    """What was measured when the model was made to compute in integers.

    `fingerprint` is the model's, before; cosines are of vectors of `texts` texts, by which nothing
    was calibrated or chosen, with those in fp32; `left` names the layers that stay in bf16.
    """

    fingerprint: str
    texts: int
    lowest_cosine: float
    mean_cosine: float
    left: tuple[str, ...] = ()


class _Record(msgspec.Struct, frozen=True):
    quality: Quality
    steps: dict[str, tuple[Annotated[float, Meta(gt=0)], Annotated[int, Meta(ge=0, le=255)]]]
    """Scale and zero of each layer's input; its factors are the tensor of the same name."""


def write_int8(folder: Path, inputs: Mapping[str, Inputs], quality: Quality) -> None:
    """Write `FILE` beside the weights, which stay as they are."""
    record = _Record(quality, {name: (i.scale, i.zero) for name, i in inputs.items()})
    tensors = {name: i.factor.contiguous() for name, i in inputs.items()}
    with writing(folder / FILE) as partial:
        save_file(tensors, partial, metadata={"bertkit": msgspec.json.encode(record).decode()})


def read_int8(folder: Path, fingerprint: str) -> tuple[dict[str, Inputs], Quality]:
    """The same, for the model of this fingerprint.

    Raises: CheckpointError when there is none, it is damaged, or it belongs to other weights.
    """
    path = folder / FILE
    if not path.exists():
        raise CheckpointError(f"{folder}: no int8 layers; use `bertkit export int8`")
    factors, notes = read_file(path, "quantize the model again")
    try:
        record = msgspec.convert(from_json(notes.get("bertkit", "").encode()), type=_Record)
        inputs = {name: Inputs(factors[name], *step) for name, step in record.steps.items()}
        if not all(map(_sound, inputs.values())):
            raise ValueError("a factor or a step that is no number above 0")
    except (ValueError, KeyError, msgspec.ValidationError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); quantize the model again") from None
    if record.quality.fingerprint != fingerprint:
        raise CheckpointError(
            f"{path}: belongs to other weights than this folder's; quantize the model again"
        )
    return inputs, record.quality


def _sound(inputs: Inputs) -> bool:
    """Whether numbers can be divided by these."""
    factor = inputs.factor
    real = factor.is_floating_point() and factor.ndim == 1 and math.isfinite(inputs.scale)
    return real and bool((factor.isfinite() & (factor > 0)).all())
