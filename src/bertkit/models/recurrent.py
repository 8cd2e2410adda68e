"""What stands on top of frozen vectors: a BiLSTM, and a learned mixture of layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence


class BiLSTM(nn.Module):
    """Layers of LSTMs in both directions, their outputs side by side; dropout between layers.

    Source: Graves & Schmidhuber 2005, "Framewise phoneme classification with bidirectional LSTM".
    """

    def __init__(self, inputs: int, width: int, *, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0  # torch warns of dropout that has no place
        self.lstm = nn.LSTM(inputs, width, layers, dropout=between, bidirectional=True)

    def forward(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """Sequences end to end, in any order of lengths. Shapes: (N, inputs) -> (N, 2 · width)."""
        sizes = torch.tensor(lengths, device=x.device)
        owner = torch.repeat_interleave(sizes)
        position = torch.arange(len(owner), device=x.device) - (sizes.cumsum(0) - sizes)[owner]
        rank = sizes.argsort(descending=True, stable=True).argsort()
        # as PackedSequence wants it: all first tokens, all second ones …, longest sequence first
        order = (position * len(sizes) + rank[owner]).argsort()
        packed = PackedSequence(x[order], position.bincount().cpu())
        out: Tensor = self.lstm(packed)[0].data
        return out[order.argsort()]


class ScalarMix(nn.Module):
    """γ Σ softmax(s)_j h_j, with s and γ learned; at first the mean. Shapes: (J, N, D) -> (N, D).

    Source: Peters et al. 2018 (ELMo), equation 1.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.scale * torch.tensordot(self.scores.softmax(0), states, 1)
        return out
