"""A BiLSTM over packed sequences reads each as if it were alone; a mixture of layers learns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertkit.models.recurrent import BiLSTM, ScalarMix

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def alone(model: BiLSTM, x: Tensor, lengths: list[int]) -> Tensor:
    """Each sequence by itself through torch's own LSTM, without packing."""
    return torch.cat([model.lstm(part)[0] for part in x.split(lengths)])


@given(LENGTHS)
def test_packed_is_alone_in_any_order_of_lengths(lengths: list[int]) -> None:
    torch.manual_seed(0)
    model = BiLSTM(4, 3).eval()
    x = torch.randn(sum(lengths), 4)
    out = model(x, lengths)
    assert out.shape == (sum(lengths), 6)
    torch.testing.assert_close(out, alone(model, x, lengths))


def test_control_other_borders_give_other_numbers() -> None:
    model = BiLSTM(4, 3).eval()
    x = torch.randn(6, 4)
    assert (model(x, [2, 4]) - model(x, [4, 2])).abs().max() > 1e-3


def test_gradients_are_those_of_each_alone() -> None:
    model = BiLSTM(4, 3, layers=2)
    x = torch.randn(9, 4, requires_grad=True)
    weight = torch.randn(9, 6)
    inputs = (x, *model.parameters())
    ours = torch.autograd.grad((model(x, [2, 5, 1, 1]) * weight).sum(), inputs)
    theirs = torch.autograd.grad((alone(model, x, [2, 5, 1, 1]) * weight).sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
        assert a.abs().max() > 0


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_is_for_training_and_between_layers(layers: int) -> None:
    model = BiLSTM(4, 8, layers=layers, dropout=0.5)
    x = torch.randn(5, 4)
    same = torch.equal(model(x, [5]), model(x, [5]))
    assert same == (layers == 1)
    model.eval()
    assert torch.equal(model(x, [5]), model(x, [5]))


def test_a_mixture_begins_as_the_mean_and_is_the_formula() -> None:
    mix, states = ScalarMix(3), torch.randn(3, 5, 4)
    torch.testing.assert_close(mix(states), states.mean(0))
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.scale.fill_(1.5)
    shares = torch.tensor([0.5, -1.0, 2.0]).exp()
    wanted = 1.5 * sum(s * h for s, h in zip(shares / shares.sum(), states, strict=True))
    torch.testing.assert_close(mix(states), wanted)


def test_a_mixture_finds_the_layer_that_matters() -> None:
    mix, states = ScalarMix(3), torch.randn(3, 50, 4)
    optimizer = torch.optim.Adam(mix.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (mix(states) - 2 * states[1]).square().mean().backward()
        optimizer.step()
    assert mix.scores.softmax(0)[1] > 0.95
    assert mix.scale.item() == pytest.approx(2.0, abs=0.1)
