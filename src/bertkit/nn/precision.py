"""Selection of the device, and of the precision (fp32 or bf16)."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bertkit.errors import DeviceError, check_choice

# Commands use the names of precisions without importing torch.
if TYPE_CHECKING:
    import torch
    from torch import Tensor

Precision = Literal["auto", "fp32", "bf16"]

Inference = Literal["auto", "fp32", "bf16", "int8"]
"""Precision for inference. int8 requires a model directory with quantization data."""

BF16_TILE_ROWS = 32
"""Number of bf16 rows that the matrix unit of a CPU processes at once.

If the number of rows is not a multiple, a computation takes up to a third longer, and oneDNN
compiles new code for each number (notes/2026-11.md).
"""

CHUNK_VALUES = 1 << 17
"""Number of bf16 values to convert to fp32 at once. So many values fit into the cache of a CPU."""


WITHOUT_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
"""Values of the environment variable ONEDNN_MAX_CPU_ISA that disable bf16 instructions."""


@cache
def cpuinfo() -> str:
    """Return the content of `/proc/cpuinfo`, or an empty string if it does not exist."""
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def has_bf16(device: str) -> bool:
    """Return whether a device has bf16 instructions that bertkit may use.

    Without these instructions, bf16 would be emulated, which is 100 times slower. A CPU is treated
    as if it had none if ONEDNN_MAX_CPU_ISA limits oneDNN to older instruction sets.
    """
    if device.startswith("cuda"):
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_BF16:
        return False
    return any(flag in cpuinfo() for flag in ("avx512_bf16", "amx_bf16", " bf16"))


@cache
def has_amx() -> bool:
    """Return whether the CPU has AMX tiles for bf16 and oneDNN may use them."""
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    return "amx_bf16" in cpuinfo() and ("AMX" in isa or isa in ("ALL", "DEFAULT"))


def bf16_is_faster(device: str) -> bool:
    """Return whether bf16 is faster than fp32 on a device. The precision `auto` then selects bf16.

    On Intel CPUs without AMX, matmuls take twice as long in bf16 as in fp32 (notes/2026-11.md).
    """
    without_amx = "GenuineIntel" in cpuinfo() and "amx_bf16" not in cpuinfo()
    return has_bf16(device) and not (device.startswith("cpu") and without_amx)


def resolve(precision: Precision, device: str) -> torch.dtype:
    """Return the dtype for a precision on a device.

    Args:
        precision: The requested precision.
        device: Name of the device.

    Raises:
        ConfigError: If the precision is not supported.
        DeviceError: If bf16 is requested on a device that emulates it.
    """
    import torch

    check_choice("precision", precision, get_args(Precision))
    if precision == "fp32" or (precision == "auto" and not bf16_is_faster(device)):
        return torch.float32
    if not has_bf16(device):
        raise DeviceError(
            f"precision: this {device.split(':')[0]} has no bf16 instructions and would emulate "
            "them 100 times slower; use fp32"
        )
    return torch.bfloat16


def resolve_device(name: str, setting: str = "device") -> str:
    """Return the name of the device to use, and check that the device can be used.

    Args:
        name: Name of a torch device. `auto` selects a GPU if one is available, or else the CPU.
        setting: Name of the setting, for the error message.

    Raises:
        DeviceError: If the device cannot be used.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # Calling `cpu` fails for the meta device, which stores no values.
        torch.empty(1, device=name).cpu()
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"{setting}: {name!r} cannot be used ({str(error).splitlines()[0]}); "
            f"remove {setting} to use the default device"
        ) from None
    return name


def check_cpu(device: str, name: str) -> None:
    """Check that the device is the CPU, for a model that supports only the CPU.

    Args:
        device: Name of the device.
        name: Name of the model, for the error message.

    Raises:
        DeviceError: If the device is neither `auto` nor `cpu`.
    """
    if device not in ("auto", "cpu"):
        raise DeviceError(f"device: {device!r} is not supported by {name}; use cpu")


def add_up(total: Tensor | None, more: Tensor) -> Tensor:
    """Add a part of a gradient to the sum of the previous parts, in fp32 or higher precision.

    If a long sum was accumulated in bf16, later parts would be lost, because each part is too small
    compared with the sum.

    Args:
        total: Sum of the previous parts, or None if this is the first part. It may be overwritten.
        more: Part to add.

    Returns:
        The new sum.
    """
    import torch

    if total is None:
        return more
    total = total.to(torch.promote_types(total.dtype, torch.float32))
    if total.dtype == more.dtype or total.device.type != "cpu":
        return total.add_(more)
    # torch would first convert all of `more`, which is slow if it does not fit into the cache.
    parts = zip(
        total.view(-1).split(CHUNK_VALUES), more.reshape(-1).split(CHUNK_VALUES), strict=True
    )
    for sums, part in parts:
        sums.add_(part)
    return total
