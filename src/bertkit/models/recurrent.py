"""LSTMs on packed sequences, and what stands on top of frozen vectors: a BiLSTM, and a learned
mixture of layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Cells = tuple[Tensor, Tensor]
"""The hidden state and the cell of each layer. Shapes: (L, S, D) both, in both directions twice as
many of half the width."""


def run_packed(
    lstm: nn.LSTM, x: Tensor, lengths: Sequence[int], cells: Cells | None = None
) -> tuple[Tensor, Cells]:
    """Sequences end to end through an LSTM, in any order of lengths, from `cells` (zeros by
    default); its outputs, and the cells that each sequence leaves.

    Shapes: (N, inputs) -> (N, D).
    """
    sizes = torch.tensor(lengths, device=x.device)
    owner = torch.repeat_interleave(sizes)
    position = torch.arange(len(owner), device=x.device) - (sizes.cumsum(0) - sizes)[owner]
    longest_first = sizes.argsort(descending=True, stable=True)
    rank = longest_first.argsort()
    # as PackedSequence wants it: all first tokens, all second ones …, longest sequence first
    order = (position * len(sizes) + rank[owner]).argsort()
    packed = PackedSequence(x[order], position.bincount().cpu(), longest_first, rank)
    out, cells = lstm(packed, cells)
    return out.data[order.argsort()], cells


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
        return run_packed(self.lstm, x, lengths)[0]


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
