"""Compressed arrays for pages: values of a few bytes each, deflated and encoded in base64."""

from __future__ import annotations

import base64
import zlib
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["float32", "float16", "uint8"]


class Array(msgspec.Struct, frozen=True, kw_only=True):
    """Array in a JSON document.

    With the type uint8, the byte b represents the value low + (high - low) (b / 255)^power.
    """

    type: Kind
    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    power: int = 1
    data: str
    """Values in row-major order and little-endian, deflated (zlib) and encoded in base64."""


def coded(
    values: Tensor, kind: Kind, *, low: float = 0.0, high: float = 1.0, power: int = 1
) -> Array:
    """Compress a tensor for a page.

    Args:
        values: The tensor.
        kind: Type of the stored values.
        low: Smallest value that uint8 can represent.
        high: Largest value that uint8 can represent.
        power: Exponent for uint8. Larger exponents are more precise near `low`.
    """
    host = values.detach().float().cpu().numpy()
    if kind == "uint8":
        host = np.rint(255 * ((host - low) / (high - low)).clip(0, 1) ** (1 / power))
    raw = host.astype(np.dtype(kind).newbyteorder("<")).tobytes()
    # A page of 512 tokens contains 40 MB of attention weights. Compression levels above 1 reduce
    # them only a little more.
    data = base64.b64encode(zlib.compress(raw, 1)).decode()
    return Array(type=kind, shape=tuple(values.shape), low=low, high=high, power=power, data=data)


def decoded(array: Array) -> NDArray[np.float32]:
    """Decompress an array in the same way as the scripts of a page."""
    raw = zlib.decompress(base64.b64decode(array.data))
    values = np.frombuffer(raw, np.dtype(array.type).newbyteorder("<")).astype(np.float64)
    if array.type == "uint8":
        values = array.low + (array.high - array.low) * (values / 255) ** array.power
    return values.reshape(array.shape).astype(np.float32)
