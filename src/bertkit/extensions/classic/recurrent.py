"""LSTMs that process packed sequences, and a learned weighted sum of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Cells = tuple[Tensor, Tensor]
"""Hidden states and cells of all layers.

Shapes: both (L, S, D), or both (2L, S, D / 2) if there are two directions.
"""


@dataclass(frozen=True)
class Steps:
    """Order in which an LSTM reads packed sequences.

    It reads the first tokens of all sequences, then the second tokens, and so on. At each step, the
    longest sequence comes first, as in torch's PackedSequence.

    Shapes:
        tokens: (N,), the index of each token in the packed batch, in reading order.
        sequences: (S,), the indices of the sequences, longest first.
        sizes: (steps,), the number of tokens at each step, on the CPU.
    """

    tokens: Tensor
    sequences: Tensor
    sizes: Tensor

    @staticmethod
    def of(
        lengths: Sequence[int], device: torch.device | None = None, *, backward: bool = False
    ) -> Steps:
        """Compute the reading order of sequences with these lengths, which need not be sorted.

        Args:
            lengths: Number of tokens in each sequence.
            device: Device of the result.
            backward: Whether to read each sequence from its end.
        """
        counts = torch.tensor(lengths, device=device)
        owner = torch.repeat_interleave(counts)
        position = torch.arange(len(owner), device=device) - (counts.cumsum(0) - counts)[owner]
        step = counts[owner] - 1 - position if backward else position
        sequences = counts.argsort(descending=True, stable=True)
        rank = sequences.argsort()
        tokens = (step * len(counts) + rank[owner]).argsort()
        return Steps(tokens, sequences, step.bincount().cpu())


class GRU(nn.GRU):
    """torch's GRU with the interface of torch's LSTM. The cell has size 0."""

    def forward(self, x: Any, cells: Cells | None = None) -> Any:  # type: ignore[override]
        out, hidden = super().forward(x, None if cells is None else cells[0])
        return out, (hidden, hidden[..., :0])


def run_packed(
    lstm: nn.LSTM | GRU, x: Tensor, lengths: Sequence[int], cells: Cells | None = None
) -> tuple[Tensor, Cells]:
    """Run an LSTM over packed sequences, which need not be sorted by length.

    Args:
        lstm: The LSTM or GRU.
        x: Inputs of all tokens.
        lengths: Number of tokens in each sequence.
        cells: Initial states. Default: zeros.

    Returns:
        The outputs for all tokens, and the final states.

    Shapes:
        x: (N, inputs).
        returns: outputs (N, D).
    """
    steps = Steps.of(lengths, x.device)
    order, back = steps.sequences, steps.sequences.argsort()
    out, cells = lstm(PackedSequence(x[steps.tokens], steps.sizes, order, back), cells)
    return out.data[steps.tokens.argsort()], cells


class ProjectedLSTM(nn.Module):
    """Unidirectional LSTM that projects its outputs, and can clip its cells and outputs.

    Without clipping, it equals torch's `LSTM(inputs, width, proj_size=outputs)` with one bias.
    Source: Sak et al. 2014, "Long short-term memory recurrent neural network architectures",
    section 2.
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
        """Process tokens in the order of `Steps`.

        Args:
            x: Inputs of the tokens.
            sizes: Number of tokens at each step.
            state: Initial output and cell of each sequence, longest sequence first.

        Returns:
            The outputs for all tokens, and the final output and cell of each sequence.

        Shapes:
            x: (N, inputs).
            state: outputs (S, outputs), cells (S, width).
            returns: outputs (N, outputs).
        """
        output, cell = state
        outputs = []
        for gates in self.input(x).split(list(sizes)):
            # The longest sequences are first, so only the first `count` sequences have not ended.
            count = len(gates)
            new_output, new_cell = self._step(gates, output[:count], cell[:count])
            output = torch.cat([new_output, output[count:]])
            cell = torch.cat([new_cell, cell[count:]])
            outputs.append(new_output)
        return torch.cat(outputs), (output, cell)

    def _step(self, gates: Tensor, output: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, new, leave = (gates + self.recurrent(output)).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        cell = _clip(cell, self.cell_clip)
        output = self.projection(leave.sigmoid() * cell.tanh())
        return _clip(output, self.output_clip), cell


def _clip(x: Tensor, limit: float | None) -> Tensor:
    return x if limit is None else x.clamp(-limit, limit)


class ScalarMix(nn.Module):
    """Weighted sum of layers, γ Σ softmax(s)_j h_j, where s and γ are learned.

    With the initial values, it is the mean of the layers. Source: Peters et al. 2018 (ELMo),
    equation 1.

    Shapes:
        states: (J, N, D).
        returns: (N, D).
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.scale * torch.tensordot(self.scores.softmax(0), states, 1)
        return out

    def layer_weights(self, layers: Sequence[int]) -> dict[str, float]:
        """Return the learned weights of the layers, which add up to 1, and the scale γ.

        Args:
            layers: Number of each layer, for the names in the result; 0 is the embedding layer.
        """
        weights = self.scores.detach().softmax(0).tolist()
        names = (str(layer or "embeddings") for layer in layers)
        return {**dict(zip(names, weights, strict=True)), "scale": self.scale.item()}
