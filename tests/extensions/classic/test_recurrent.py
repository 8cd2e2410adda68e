"""Packed recurrent layers, layer mixtures, and projected LSTMs."""

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


def run_separately(model: nn.LSTM, x: Tensor, lengths: list[int]) -> Tensor:
    """Run each sequence separately with torch's LSTM, without packing."""
    return torch.cat([model(part)[0] for part in x.split(lengths)])


@given(LENGTHS)
def test_run_packed_matches_separate_sequences(lengths: list[int]) -> None:
    torch.manual_seed(0)
    model = bilstm()
    x = torch.randn(sum(lengths), 4)
    out, _ = run_packed(model, x, lengths)
    assert out.shape == (sum(lengths), 6)
    torch.testing.assert_close(out, run_separately(model, x, lengths))


def test_run_packed_depends_on_sequence_boundaries() -> None:
    model, x = bilstm(), torch.randn(6, 4)
    first, second = (run_packed(model, x, lengths)[0] for lengths in ([2, 4], [4, 2]))
    assert (first - second).abs().max() > 1e-3


def test_run_packed_gradients_match_separate_sequences() -> None:
    model = bilstm(layers=2)
    x = torch.randn(9, 4, requires_grad=True)
    weight = torch.randn(9, 6)
    inputs = (x, *model.parameters())
    out, _ = run_packed(model, x, [2, 5, 1, 1])
    packed_grads = torch.autograd.grad((out * weight).sum(), inputs)
    separate_grads = torch.autograd.grad(
        (run_separately(model, x, [2, 5, 1, 1]) * weight).sum(), inputs
    )
    for a, b in zip(packed_grads, separate_grads, strict=True):
        torch.testing.assert_close(a, b)
        assert a.abs().max() > 0


def test_scalar_mix_starts_as_mean_and_matches_formula() -> None:
    mix, states = ScalarMix(3), torch.randn(3, 5, 4)
    torch.testing.assert_close(mix(states), states.mean(0))
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.scale.fill_(1.5)
    weights = torch.tensor([0.5, -1.0, 2.0]).exp()
    expected = 1.5 * sum(s * h for s, h in zip(weights / weights.sum(), states, strict=True))
    torch.testing.assert_close(mix(states), expected)


def test_scalar_mix_learns_relevant_layer() -> None:
    mix, states = ScalarMix(3), torch.randn(3, 50, 4)
    optimizer = torch.optim.Adam(mix.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (mix(states) - 2 * states[1]).square().mean().backward()
        optimizer.step()
    assert mix.scores.softmax(0)[1] > 0.95
    assert mix.scale.item() == pytest.approx(2.0, abs=0.1)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_projected_lstm_without_clips_matches_torch() -> None:
    bertkit_lstm, torch_lstm = ProjectedLSTM(4, 7, 3), nn.LSTM(4, 7, proj_size=3)
    with torch.no_grad():
        torch_lstm.weight_ih_l0.copy_(bertkit_lstm.input.weight)
        torch_lstm.bias_ih_l0.copy_(bertkit_lstm.input.bias)
        torch_lstm.weight_hh_l0.copy_(bertkit_lstm.recurrent.weight)
        torch_lstm.bias_hh_l0.zero_()
        torch_lstm.weight_hr_l0.copy_(bertkit_lstm.projection.weight)
    x, lengths = torch.randn(9, 4), [2, 5, 1, 1]
    start = torch.randn(4, 3), torch.randn(4, 7)
    steps = Steps.of(lengths)
    order = steps.sequences
    out, ends = bertkit_lstm(
        x[steps.tokens], steps.sizes.tolist(), (start[0][order], start[1][order])
    )
    out = out[steps.tokens.argsort()]
    for index, part in enumerate(x.split(lengths)):
        expected, (last, cell) = torch_lstm(part, tuple(s[index : index + 1] for s in start))
        torch.testing.assert_close(out.split(lengths)[index], expected)
        torch.testing.assert_close(ends[0][order.argsort()][index], last[0])
        torch.testing.assert_close(ends[1][order.argsort()][index], cell[0])


def test_projected_lstm_clips_cells_and_outputs() -> None:
    unclipped, clipped_lstm = (
        ProjectedLSTM(4, 7, 3),
        ProjectedLSTM(4, 7, 3, cell_clip=0.1, output_clip=0.01),
    )
    clipped_lstm.load_state_dict(unclipped.state_dict())
    start = torch.zeros(1, 3), torch.zeros(1, 7)
    x = torch.randn(6, 4)
    for model, clipped in ((unclipped, False), (clipped_lstm, True)):
        out, (_, cell) = model(x, [1] * 6, start)
        assert (out.abs().max() <= 0.01 + 1e-7) == clipped
        assert (cell.abs().max() <= 0.1 + 1e-7) == clipped


@given(LENGTHS, st.booleans())
def test_steps_order_tokens_by_step_and_length(lengths: list[int], backward: bool) -> None:
    steps = Steps.of(lengths, backward=backward)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    expected = [
        starts[i] + (lengths[i] - 1 - step if backward else step)
        for step in range(max(lengths))
        for i in longest_first
        if step < lengths[i]
    ]
    assert steps.tokens.tolist() == expected
    assert steps.sequences.tolist() == longest_first
    assert steps.sizes.tolist() == [sum(n > s for n in lengths) for s in range(max(lengths))]
