"""Precision is what was asked, or a sentence says why not."""

import pytest
import torch

from bertkit.errors import DeviceError
from bertkit.nn import precision
from bertkit.nn.precision import resolve


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
