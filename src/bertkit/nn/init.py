"""Where weights begin."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def initialize(module: nn.Module, std: float = 0.02) -> None:
    """BERT's start: matrices from a normal cut at two standard deviations, biases 0, norms 1.

    Source: google-research/bert, `create_initializer` (truncated normal, 0.02). The padding row
    is drawn like any other, as there.
    """
    for name, weight in module.named_parameters():
        if weight.ndim > 1:
            nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
        else:  # the vectors called weight are those of norms
            weight.fill_(1.0 if name.rpartition(".")[2] == "weight" else 0.0)
