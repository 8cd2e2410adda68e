"""Average of the weights over the last steps of a run."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class TailAverage:
    """Uniform average of the weights over all steps after a given step.

    Args:
        weights: The weights, by name.
        after: Number of initial steps that are not averaged.

    Source: Izmailov et al. 2018, without cyclical learning rates.
    """

    def __init__(self, weights: Mapping[str, Tensor], *, after: int) -> None:
        self.weights, self.after = weights, after
        self.means: dict[str, Tensor] = {}
        """Average of each weight in fp32, by name. It is empty before the first averaged step."""

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Add the weights after `step` (from 1) to the average, if this step is averaged."""
        count = step - self.after
        if count == 1:
            self.means = {name: w.detach().float().clone() for name, w in self.weights.items()}
        elif count > 1:
            for name, w in self.weights.items():
                self.means[name].lerp_(w.float(), 1 / count)

    @torch.no_grad()
    def put(self) -> None:
        """Replace the weights by their average, if there is one."""
        for name, mean in self.means.items():
            self.weights[name].copy_(mean)
        self.means = {}
