"""Arrays of a page: what comes out is what went in, as far as their type can say it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.view.arrays import coded, decoded


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30))
def test_what_comes_out_is_what_went_in(numbers: list[float]) -> None:
    values = torch.tensor(numbers)
    np.testing.assert_array_equal(decoded(coded(values, "float32")), values)
    half = decoded(coded(values, "float16"))
    np.testing.assert_allclose(half, values, rtol=2**-11, atol=2**-25)
    byte = decoded(coded(values, "uint8"))
    np.testing.assert_allclose(byte, values, atol=0.5001 / 255)
    root = decoded(coded(values, "uint8", power=2))
    np.testing.assert_allclose(np.sqrt(root), values.sqrt(), atol=0.5001 / 255)


def test_bytes_lie_between_low_and_high() -> None:
    values = torch.tensor([[-1.0, 0.0], [0.5, 1.0]])
    array = coded(values, "uint8", low=-1.0)
    assert array.shape == (2, 2)
    np.testing.assert_allclose(decoded(array), values, atol=1.01 / 255)


def test_small_weights_keep_more_by_their_root() -> None:
    small = torch.tensor([0.001])
    assert decoded(coded(small, "uint8")) == 0
    assert decoded(coded(small, "uint8", power=2)) == pytest.approx(0.001, rel=0.05)
