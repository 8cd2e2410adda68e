"""What numbers to compute in: fp32, or bf16 where the machine has the instructions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import torch

from bertkit.errors import DeviceError

Precision = Literal["auto", "fp32", "bf16"]


@cache
def has_bf16(device: str) -> bool:
    """Whether the device multiplies bf16 in hardware; where it is emulated it is 100 × slower."""
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))


def resolve(precision: Precision, device: str) -> torch.dtype:
    """The dtype of a run. Raises: DeviceError when bf16 is asked for where it is emulated."""
    if precision == "fp32" or (precision == "auto" and not has_bf16(device)):
        return torch.float32
    if not has_bf16(device):
        raise DeviceError(
            f"precision: this {device.split(':')[0]} has no bf16 instructions and would emulate "
            "them 100 times slower; use fp32"
        )
    return torch.bfloat16
