"""Linear layers with low-rank adapters (LoRA). Hu et al. 2021."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.nn.dropout import Dropout

ADAPTERS = (".lora_a", ".lora_b")
"""Suffixes of the names of adapter weights."""


class LoRALinear(nn.Linear):
    """Linear layer with adapters, which computes W x + b + (alpha / rank) B A x (equation 3).

    W and b are frozen. If the output has several parts (queries, keys, and values), each part has
    its own adapter with its own A and B. A is initialized randomly and B with zeros, so that the
    adapters do not change the output at first.

    Args:
        linear: The layer to adapt.
        sizes: Sizes of the parts of the output.
        rank: Rank of the adapters.
        alpha: Scale of the adapters. Their output is multiplied by alpha / rank.
        dropout: Dropout probability of the adapters' input.

    Shapes:
        lora_a: (parts · rank, in).
        lora_b: (out, rank).
    """

    def __init__(
        self, linear: nn.Linear, sizes: Sequence[int], *, rank: int, alpha: float, dropout: float
    ) -> None:
        has_bias, weight = linear.bias is not None, linear.weight
        super().__init__(linear.in_features, linear.out_features, has_bias, device="meta")
        self.weight, self.bias = weight, linear.bias
        self.sizes, self.rank, self.scale = tuple(sizes), rank, alpha / rank
        self.dropout = Dropout(dropout)
        self.lora_a = nn.Parameter(weight.new_empty(len(sizes) * rank, linear.in_features))
        self.lora_b = nn.Parameter(weight.new_zeros(linear.out_features, rank))
        # nn.Linear has the same initialization.
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.linear(self.dropout(x), self.lora_a).chunk(len(self.sizes), -1)
        parts = zip(inner, self.lora_b.split(self.sizes), strict=True)
        return super().forward(x) + self.scale * torch.cat([F.linear(h, b) for h, b in parts], -1)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return an equivalent linear layer without adapters."""
        linear = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, device="meta"
        )
        parts = zip(self.lora_a.chunk(len(self.sizes)), self.lora_b.split(self.sizes), strict=True)
        change = torch.cat([b @ a for a, b in parts])
        linear.weight = nn.Parameter(torch.add(self.weight, change, alpha=self.scale))
        linear.bias = self.bias
        return linear
