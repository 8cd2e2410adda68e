"""What to compute on, and in what numbers: fp32, or bf16 where it is faster."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from bertkit.errors import DeviceError, refuse_unknown

if TYPE_CHECKING:  # names of precisions need no torch, nor do those who say one
    import torch
    from torch import Tensor

Precision = Literal["auto", "fp32", "bf16"]

Inference = Literal["auto", "fp32", "bf16", "int8"]
"""What a finished model can compute in; int8 where its folder says how."""

BF16_TILE_ROWS = 32
"""Rows of bf16 that a processor's matrix unit sums up at once: other numbers of rows cost up to a
third more, and oneDNN new code for each (notes/2026-11.md)."""

CONVERTED_AT_ONCE = 1 << 17
"""How many bf16 numbers become fp32 at a time: so many stay in a processor's cache."""


WITHOUT_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
"""Values of oneDNN's ONEDNN_MAX_CPU_ISA under which it uses no bf16 instructions."""


@cache
def cpuinfo() -> str:
    """What Linux says of the processor; elsewhere nothing."""
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def has_bf16(device: str) -> bool:
    """Whether the device multiplies bf16 in hardware; where it is emulated it is 100 × slower.

    A processor that oneDNN is told to take for an older one (ONEDNN_MAX_CPU_ISA) does not.
    """
    if device.startswith("cuda"):
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_BF16:
        return False
    return any(flag in cpuinfo() for flag in ("avx512_bf16", "amx_bf16", " bf16"))


@cache
def has_amx() -> bool:
    """Whether the processor multiplies bf16 by tiles, and oneDNN may use them."""
    told = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    return "amx_bf16" in cpuinfo() and ("AMX" in told or told in ("ALL", "DEFAULT"))


def gains_by_bf16(device: str) -> bool:
    """Whether bf16 is faster than fp32 on the device: where it is, auto takes it.

    Intel's processors without AMX do half as many products a second in bf16 (notes/2026-11.md).
    """
    without_amx = "GenuineIntel" in cpuinfo() and "amx_bf16" not in cpuinfo()
    return has_bf16(device) and not (device.startswith("cpu") and without_amx)


def resolve(precision: Precision, device: str) -> torch.dtype:
    """The dtype of a run. Raises: DeviceError when bf16 is asked for where it is emulated,
    ConfigError for what is no precision.
    """
    import torch

    refuse_unknown("precision", precision, get_args(Precision))
    if precision == "fp32" or (precision == "auto" and not gains_by_bf16(device)):
        return torch.float32
    if not has_bf16(device):
        raise DeviceError(
            f"precision: this {device.split(':')[0]} has no bf16 instructions and would emulate "
            "them 100 times slower; use fp32"
        )
    return torch.bfloat16


def resolve_device(name: str, setting: str = "device") -> str:
    """The device of a run; auto is the GPU where there is one.

    Raises: DeviceError naming the setting when it cannot be used.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name).cpu()  # a device without numbers, meta, is none
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"{setting}: {name!r} cannot be used ({str(error).splitlines()[0]}); "
            "leave it out for what is there"
        ) from None
    return name


def check_cpu(device: str, name: str) -> None:
    """Check that a device suits a model that runs only on the CPU.

    Raises:
        DeviceError: If the device is neither auto nor the CPU.
    """
    if device not in ("auto", "cpu"):
        raise DeviceError(f"device: {device!r} is not supported by {name}; use cpu")


def add_up(total: Tensor | None, more: Tensor) -> Tensor:
    """The sum of two parts of a gradient, in fp32 at least; `total` may be overwritten.

    In bf16 the later parts of a long sum vanish, each too small beside the sum so far.
    """
    import torch

    if total is None:
        return more
    total = total.to(torch.promote_types(total.dtype, torch.float32))
    if total.dtype == more.dtype or total.device.type != "cpu":
        return total.add_(more)
    # torch casts the whole of what it adds first, which goes through memory where that is large
    parts = zip(
        total.view(-1).split(CONVERTED_AT_ONCE),
        more.reshape(-1).split(CONVERTED_AT_ONCE),
        strict=True,
    )
    for into, part in parts:
        into.add_(part)
    return total
