"""Resolution of precision and device: the requested value or a clear error."""

import pytest
import torch

from bertkit.errors import DeviceError
from bertkit.nn import precision
from bertkit.nn.precision import has_bf16, resolve, resolve_device


def test_fp32_is_always_available() -> None:
    assert resolve("fp32", "cpu") == torch.float32


@pytest.mark.parametrize(
    ("processor", "dtype"),
    [
        ("vendor_id : AuthenticAMD\nflags : avx512f avx512_bf16", torch.bfloat16),
        ("vendor_id : GenuineIntel\nflags : avx512_bf16 amx_bf16", torch.bfloat16),
        ("vendor_id : GenuineIntel\nflags : avx512f avx512_bf16", torch.float32),
        ("Features : asimd bf16", torch.bfloat16),
        ("vendor_id : AuthenticAMD\nflags : avx2", torch.float32),
        ("", torch.float32),
    ],
)
def test_auto_selects_bf16_if_faster(
    processor: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(precision, "cpuinfo", lambda: processor)
    assert resolve("auto", "cpu") == dtype
    if "bf16" in processor:  # explicit bf16 only requires the instructions
        assert resolve("bf16", "cpu") == torch.bfloat16


def test_resolve_rejects_emulated_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda device: False)
    with pytest.raises(DeviceError, match=r"this cpu has no bf16 instructions.*use fp32"):
        resolve("bf16", "cpu")


def test_has_bf16_respects_onednn_instruction_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpuinfo", lambda: "flags : avx2 avx512f avx512_bf16 amx_bf16")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert has_bf16("cpu")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core_bf16")
    assert has_bf16("cpu")
    for older in ("AVX512_CORE_VNNI", "avx2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", older)
        assert not has_bf16("cpu")


@pytest.mark.parametrize(
    ("flags", "max_isa", "expected"),
    [
        ("avx512_bf16 amx_bf16", None, True),
        ("avx512_bf16 amx_bf16", "avx512_core_amx", True),
        ("avx512_bf16 amx_bf16", "AVX512_CORE_BF16", False),
        ("avx512_bf16", None, False),
    ],
)
def test_has_amx_respects_onednn_instruction_limit(
    flags: str, max_isa: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpuinfo", lambda: f"flags : {flags}")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if max_isa is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", max_isa)
    assert precision.has_amx.__wrapped__() is expected


def test_resolve_device_rejects_unavailable_device() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("cuda:99", "gpu", "meta"):
        with pytest.raises(DeviceError, match=rf"train\.device: '{name}' cannot be used"):
            resolve_device(name, "train.device")
