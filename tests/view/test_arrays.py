"""Encoding of arrays in pages, within the precision of their type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.view.arrays import coded, decoded


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30))
def test_decoded_values_match_encoded_values(numbers: list[float]) -> None:
    values = torch.tensor(numbers)
    np.testing.assert_array_equal(decoded(coded(values, "float32")), values)
    half = decoded(coded(values, "float16"))
    np.testing.assert_allclose(half, values, rtol=2**-11, atol=2**-25)
    byte = decoded(coded(values, "uint8"))
    np.testing.assert_allclose(byte, values, atol=0.5001 / 255)
    root = decoded(coded(values, "uint8", power=2))
    np.testing.assert_allclose(np.sqrt(root), values.sqrt(), atol=0.5001 / 255)


def test_uint8_uses_range_from_low_to_high() -> None:
    values = torch.tensor([[-1.0, 0.0], [0.5, 1.0]])
    array = coded(values, "uint8", low=-1.0)
    assert array.shape == (2, 2)
    np.testing.assert_allclose(decoded(array), values, atol=1.01 / 255)


def test_power_improves_precision_of_small_weights() -> None:
    small = torch.tensor([0.001])
    assert decoded(coded(small, "uint8")) == 0
    assert decoded(coded(small, "uint8", power=2)) == pytest.approx(0.001, rel=0.05)
