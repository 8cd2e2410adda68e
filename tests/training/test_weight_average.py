"""Average of the weights of the last steps."""

from __future__ import annotations

import torch

from bertkit.training.weight_average import TailAverage


def test_average_is_the_mean_of_later_steps() -> None:
    weight = torch.zeros(3, requires_grad=True)
    average = TailAverage({"w": weight}, after=2)
    values = torch.randn(6, 3)
    for step, value in enumerate(values, 1):
        weight.data = value.clone()
        average.add(step)
        assert bool(average.means) == (step > 2)
    average.put()
    torch.testing.assert_close(weight.detach(), values[2:].mean(0))
    assert not average.means


def test_average_without_counted_steps_keeps_weights() -> None:
    weight = torch.ones(3)
    average = TailAverage({"w": weight}, after=2)
    average.add(1)
    average.put()
    assert torch.equal(weight, torch.ones(3))
