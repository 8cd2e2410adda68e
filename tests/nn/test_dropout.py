"""Dropout zeroes the given fraction, keeps the mean, and has no effect in evaluation."""

import pytest
import torch

from bertkit.nn.dropout import Dropout, dropout


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_has_rate_and_keeps_mean(rate: float, dtype: torch.dtype) -> None:
    n = 400_003  # not a multiple of the four samples per random word
    out = dropout(torch.ones(n, dtype=dtype), rate)
    zeros = (out == 0).double().mean().item()
    assert abs(zeros - rate) < 5 * (rate * (1 - rate) / n) ** 0.5
    nonzero = out[out != 0].unique()
    torch.testing.assert_close(nonzero.float(), torch.tensor([1 / (1 - rate)]), rtol=4e-3, atol=0)


def test_gradient_is_zero_where_output_is_zero() -> None:
    x = torch.randn(1000, requires_grad=True)
    out = dropout(x, 0.3)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad == 0, out == 0)


def test_dropout_is_deterministic_for_seed() -> None:
    x = torch.ones(100)
    first = dropout(torch.manual_seed(3) and x, 0.5)
    again = dropout(torch.manual_seed(3) and x, 0.5)
    other_seed = dropout(torch.manual_seed(4) and x, 0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other_seed)


def test_dropout_returns_input_in_evaluation_or_at_rate_zero() -> None:
    x = torch.randn(50)
    assert Dropout(0.5).eval()(x) is x
    assert dropout(x, 0.0) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_of_one_returns_zeros_without_gradient(dtype: torch.dtype) -> None:
    x = torch.randn(10, dtype=dtype, requires_grad=True)
    out = dropout(x, 1.0)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert not out.any()
    assert not gradient.any()
