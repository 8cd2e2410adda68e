"""An LSTM over packed sequences reads each as if it were alone; a mixture of layers learns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from bertkit.extensions.classic.recurrent import ProjectedLSTM, ScalarMix, Steps, run_packed

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def bilstm(layers: int = 1) -> nn.LSTM:
    return nn.LSTM(4, 3, layers, bidirectional=True)


def alone(model: nn.LSTM, x: Tensor, lengths: list[int]) -> Tensor:
    """Each sequence by itself through torch's own LSTM, without packing."""
    return torch.cat([model(part)[0] for part in x.split(lengths)])


@given(LENGTHS)
def test_packed_is_alone_in_any_order_of_lengths(lengths: list[int]) -> None:
    torch.manual_seed(0)
    model = bilstm()
    x = torch.randn(sum(lengths), 4)
    out, _ = run_packed(model, x, lengths)
    assert out.shape == (sum(lengths), 6)
    torch.testing.assert_close(out, alone(model, x, lengths))


def test_control_other_borders_give_other_numbers() -> None:
    model, x = bilstm(), torch.randn(6, 4)
    one, other = (run_packed(model, x, lengths)[0] for lengths in ([2, 4], [4, 2]))
    assert (one - other).abs().max() > 1e-3


def test_gradients_are_those_of_each_alone() -> None:
    model = bilstm(layers=2)
    x = torch.randn(9, 4, requires_grad=True)
    weight = torch.randn(9, 6)
    inputs = (x, *model.parameters())
    out, _ = run_packed(model, x, [2, 5, 1, 1])
    ours = torch.autograd.grad((out * weight).sum(), inputs)
    theirs = torch.autograd.grad((alone(model, x, [2, 5, 1, 1]) * weight).sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
        assert a.abs().max() > 0


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


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_without_clips_it_is_torchs_projected_lstm() -> None:
    ours, theirs = ProjectedLSTM(4, 7, 3), nn.LSTM(4, 7, proj_size=3)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.input.weight)
        theirs.bias_ih_l0.copy_(ours.input.bias)
        theirs.weight_hh_l0.copy_(ours.recurrent.weight)
        theirs.bias_hh_l0.zero_()
        theirs.weight_hr_l0.copy_(ours.projection.weight)
    x, lengths = torch.randn(9, 4), [2, 5, 1, 1]
    start = torch.randn(4, 3), torch.randn(4, 7)
    steps = Steps.of(lengths)
    order = steps.sequences
    out, ends = ours(x[steps.tokens], steps.sizes.tolist(), (start[0][order], start[1][order]))
    out = out[steps.tokens.argsort()]
    for place, part in enumerate(x.split(lengths)):
        wanted, (last, cell) = theirs(part, tuple(s[place : place + 1] for s in start))
        torch.testing.assert_close(out.split(lengths)[place], wanted)
        torch.testing.assert_close(ends[0][order.argsort()][place], last[0])
        torch.testing.assert_close(ends[1][order.argsort()][place], cell[0])


def test_clips_bound_cells_and_outputs() -> None:
    free, bound = ProjectedLSTM(4, 7, 3), ProjectedLSTM(4, 7, 3, cell_clip=0.1, output_clip=0.01)
    bound.load_state_dict(free.state_dict())
    start = torch.zeros(1, 3), torch.zeros(1, 7)
    x = torch.randn(6, 4)
    for model, clipped in ((free, False), (bound, True)):
        out, (_, cell) = model(x, [1] * 6, start)
        assert (out.abs().max() <= 0.01 + 1e-7) == clipped
        assert (cell.abs().max() <= 0.1 + 1e-7) == clipped


@given(LENGTHS, st.booleans())
def test_steps_are_the_order_in_which_sequences_are_read(
    lengths: list[int], backward: bool
) -> None:
    steps = Steps.of(lengths, backward=backward)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    wanted = [
        starts[i] + (lengths[i] - 1 - step if backward else step)
        for step in range(max(lengths))
        for i in longest_first
        if step < lengths[i]
    ]
    assert steps.tokens.tolist() == wanted
    assert steps.sequences.tolist() == longest_first
    assert steps.sizes.tolist() == [sum(n > s for n in lengths) for s in range(max(lengths))]
