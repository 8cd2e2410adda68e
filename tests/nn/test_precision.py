"""Precision is what was asked, or a sentence says why not."""

from pathlib import Path

import pytest
import torch

from bertkit.errors import DeviceError
from bertkit.nn import precision
from bertkit.nn.precision import resolve, resolve_device


def test_fp32_is_always_there() -> None:
    assert resolve("fp32", "cpu") == torch.float32


@pytest.mark.parametrize(("there", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_takes_bf16_where_it_is(
    there: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda device: there)
    assert resolve("auto", "cpu") == dtype


def test_emulated_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda device: False)
    with pytest.raises(DeviceError, match=r"this cpu has no bf16 instructions.*use fp32"):
        resolve("bf16", "cpu")


def test_bf16_is_hidden_with_the_instructions_that_onednn_may_not_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : avx2 avx512f avx512_bf16 amx_bf16", encoding="utf-8")
    monkeypatch.setattr(precision, "Path", lambda _: cpuinfo)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    found = precision.has_bf16.__wrapped__
    assert found("cpu")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core_bf16")
    assert found("cpu")
    for older in ("AVX512_CORE_VNNI", "avx2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", older)
        assert not found("cpu")


def test_a_device_is_there_or_named() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("cuda:99", "gpu"):
        with pytest.raises(DeviceError, match=rf"train\.device: '{name}' cannot be used"):
            resolve_device(name, "train.device")
