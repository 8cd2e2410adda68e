"""Precision is what was asked, or a sentence says why not."""

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


def test_a_device_is_there_or_named() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("cuda:99", "gpu"):
        with pytest.raises(DeviceError, match=rf"train\.device: '{name}' cannot be used"):
            resolve_device(name, "train.device")
