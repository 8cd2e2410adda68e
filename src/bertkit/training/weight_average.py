"""The mean of the weights of a run's last steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class TailAverage:
    """The even mean of weights over the steps behind `after`.

    Source: Izmailov et al. 2018, without their cycles of the learning rate.
    """

    def __init__(self, weights: Mapping[str, Tensor], *, after: int) -> None:
        self.weights, self.after = weights, after
        self.means: dict[str, Tensor] = {}
        """By the names of weights, in fp32; empty until the first step that counts."""

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Take in the weights as they are after a step, from 1."""
        count = step - self.after
        if count == 1:
            self.means = {name: w.detach().float().clone() for name, w in self.weights.items()}
        elif count > 1:
            for name, w in self.weights.items():
                self.means[name].lerp_(w.float(), 1 / count)

    @torch.no_grad()
    def put(self) -> None:
        """Make the mean, if there is one, the weights."""
        for name, mean in self.means.items():
            self.weights[name].copy_(mean)
        self.means = {}
