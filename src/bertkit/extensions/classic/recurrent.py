"""LSTMs over sequences that lie end to end, and a learned mixture of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Cells = tuple[Tensor, Tensor]
"""The hidden state and the cell of each layer. Shapes: (L, S, D) both, in both directions twice as
many of half the width."""


@dataclass(frozen=True)
class Steps:
    """Sequences that lie end to end, in the order that an LSTM reads them: all first tokens, all
    second ones …, each time the longest sequence first (torch's PackedSequence).

    Shapes: tokens (N,) where each token lies; sequences (S,) which sequence comes when; sizes
    (steps,), on the host, how many are read at each step.
    """

    tokens: Tensor
    sequences: Tensor
    sizes: Tensor

    @staticmethod
    def of(
        lengths: Sequence[int], device: torch.device | None = None, *, backward: bool = False
    ) -> Steps:
        """Sequences of any order of lengths; `backward` reads each from its end."""
        counts = torch.tensor(lengths, device=device)
        owner = torch.repeat_interleave(counts)
        place = torch.arange(len(owner), device=device) - (counts.cumsum(0) - counts)[owner]
        step = counts[owner] - 1 - place if backward else place
        sequences = counts.argsort(descending=True, stable=True)
        rank = sequences.argsort()
        tokens = (step * len(counts) + rank[owner]).argsort()
        return Steps(tokens, sequences, step.bincount().cpu())


class GRU(nn.GRU):
    """torch's GRU, to be called as its LSTM: a cell of no width goes with the state."""

    def forward(self, x: Any, cells: Cells | None = None) -> Any:  # type: ignore[override]
        out, hidden = super().forward(x, None if cells is None else cells[0])
        return out, (hidden, hidden[..., :0])


def run_packed(
    lstm: nn.LSTM | GRU, x: Tensor, lengths: Sequence[int], cells: Cells | None = None
) -> tuple[Tensor, Cells]:
    """Sequences end to end through an LSTM, in any order of lengths, from `cells` (zeros by
    default); its outputs, and the cells that each sequence leaves.

    Shapes: (N, inputs) -> (N, D).
    """
    steps = Steps.of(lengths, x.device)
    order, back = steps.sequences, steps.sequences.argsort()
    out, cells = lstm(PackedSequence(x[steps.tokens], steps.sizes, order, back), cells)
    return out.data[steps.tokens.argsort()], cells


class ProjectedLSTM(nn.Module):
    """An LSTM whose outputs are projected, with cells and outputs clipped, in one direction.

    Without clipping it is torch's `LSTM(inputs, width, proj_size=outputs)` with one bias. Source:
    Sak et al. 2014, "Long short-term memory recurrent neural network architectures", section 2.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        outputs: int,
        *,
        cell_clip: float | None = None,
        output_clip: float | None = None,
    ) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 4 * width)
        self.recurrent = nn.Linear(outputs, 4 * width, bias=False)
        self.projection = nn.Linear(width, outputs, bias=False)
        self.cell_clip, self.output_clip = cell_clip, output_clip

    def forward(
        self, x: Tensor, sizes: Sequence[int], state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Tokens in the order of `Steps`, from a state for each sequence to those at their ends.

        Shapes: x (N, inputs) -> (N, outputs); a state is outputs (S, outputs) and cells (S, width).
        """
        output, cell = state
        given = []
        for gates in self.input(x).split(list(sizes)):
            going = len(gates)  # the longest come first: those behind have ended
            now, cells = self._step(gates, output[:going], cell[:going])
            output = torch.cat([now, output[going:]])
            cell = torch.cat([cells, cell[going:]])
            given.append(now)
        return torch.cat(given), (output, cell)

    def _step(self, gates: Tensor, output: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, new, leave = (gates + self.recurrent(output)).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        cell = _clipped(cell, self.cell_clip)
        output = self.projection(leave.sigmoid() * cell.tanh())
        return _clipped(output, self.output_clip), cell


def _clipped(x: Tensor, most: float | None) -> Tensor:
    return x if most is None else x.clamp(-most, most)


class ScalarMix(nn.Module):
    """γ Σ softmax(s)_j h_j, with s and γ learned; at first the mean. Shapes: (J, N, D) -> (N, D).

    Source: Peters et al. 2018 (ELMo), equation 1.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.scale * torch.tensordot(self.scores.softmax(0), states, 1)
        return out

    def told(self, layers: Sequence[int]) -> dict[str, float]:
        """What it has learned of layers with these numbers: the weight of each, which add up to 1,
        and what the sum is multiplied by.
        """
        weights = self.scores.detach().softmax(0).tolist()
        names = (str(layer or "embeddings") for layer in layers)
        return {**dict(zip(names, weights, strict=True)), "scale": self.scale.item()}
