"""Position-wise feed-forward network. Vaswani et al. 2017, section 3.3."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.nn.dropout import Dropout


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute the approximation of GELU that the original code of GPT-2 and ALBERT uses."""
    return F.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """Compute the square of ReLU. So et al. 2021 (Primer), section 4."""
    return F.relu(x).square()


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "relu2": relu2,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class FeedForward(nn.Module):
    """Feed-forward network, which computes down(activation(up(x))).

    `up` projects from the hidden size D to the intermediate size, and `down` projects back to D. If
    the network is gated, the output of `up` has two halves. The activation of the first half is
    multiplied by the second half (Shazeer 2020, equation 5).
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        activation: str,
        *,
        gated: bool,
        bias: bool,
        up_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation, self.gated = ACTIVATIONS[activation], gated
        width = 2 * intermediate if gated else intermediate
        self.up = nn.Linear(hidden, width, bias if up_bias is None else up_bias)
        self.dropout = Dropout(dropout)
        self.down = nn.Linear(intermediate, hidden, bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.dropout(self.inner(x)))
        return out

    def inner(self, x: Tensor) -> Tensor:
        """Compute the activations, which are the input of the second matrix (`down`)."""
        x = self.up(x)
        if not self.gated:
            return self.activation(x)
        x, gate = x.chunk(2, -1)
        return self.activation(x) * gate
