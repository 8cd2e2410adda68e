"""A small network on the states that a frozen model has of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.data.tag_schemes import scheme_of_labels
from bertkit.models.recurrent import BiLSTM, ScalarMix
from bertkit.nn.crf import CRF
from bertkit.nn.dropout import Dropout

How = Literal["one", "sum", "mix", "concat"]
"""What becomes of layers: one alone, their sum, one with learned weights, all side by side."""


def spread_of(states: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation over W words of each number of each layer; 0 and 1 where
    there are fewer than two. Shapes: (J, W, D) -> (J, 1, D) each."""
    if states.shape[1] < 2:
        zeros = states.new_zeros(states.shape[0], 1, states.shape[2], dtype=torch.float32)
        return zeros, torch.ones_like(zeros)
    # a layer at a time: all of them in fp32 may be much memory
    spreads, means = zip(*(torch.std_mean(x.float(), 0, keepdim=True) for x in states), strict=True)
    return torch.stack(means), torch.stack(spreads).clamp_min(1e-3)


class Features(nn.Module):
    """A combination of stored states, read by a BiLSTM. Shapes: N words -> (N, 2 · width).

    `mean` and `spread` are what `standardize` found.
    It stands where a model has its encoder; the ids of a batch are rows of `states` (J, W, D), of
    which the layers `rows` are taken. Word vectors `beside` (W, D') come before what becomes of
    them, as they are (Peters et al. 2018, section 3.3).
    """

    mean: Tensor | None
    spread: Tensor | None

    def __init__(
        self,
        states: Tensor,
        rows: Sequence[int],
        how: How,
        *,
        width: int,
        layers: int,
        dropout: float,
        beside: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.states, self.rows, self.how, self.beside = states, list(rows), how, beside
        inputs = states.shape[2] * (len(self.rows) if how == "concat" else 1)
        inputs += 0 if beside is None else beside.shape[1]
        self.mix = ScalarMix(len(self.rows)) if how == "mix" else None
        self.dropout = Dropout(dropout)
        self.lstm = BiLSTM(inputs, width, layers=layers, dropout=dropout)
        self.register_buffer("mean", None)
        self.register_buffer("spread", None)

    def standardize(self, states: Tensor) -> None:
        """Take each number from now on by how many standard deviations it is from its mean, both
        over these states. They are kept with the weights. Shapes: (J, W, D)."""
        self.mean, self.spread = spread_of(states[self.rows])

    def forward(self, batch: Batch) -> Tensor:
        states = torch.stack([self.states[row][batch.ids].float() for row in self.rows])
        if self.mean is not None and self.spread is not None:
            states = (states - self.mean) / self.spread
        if self.mix is not None:
            x = self.mix(states)
        else:
            x = states.transpose(0, 1).flatten(1) if self.how == "concat" else states.sum(0)
        if self.beside is not None:
            x = torch.cat([self.beside[batch.ids].float(), x], 1)
        out: Tensor = self.dropout(self.lstm(self.dropout(x), batch.layout.lengths))
        return out

    def mixture(self, layers: Sequence[int]) -> dict[str, float]:
        """What a weighted sum has learned of layers with these numbers; nothing for another way."""
        return {} if self.mix is None else self.mix.told(layers)


class WordHead(nn.Module):
    """Numbers for each word of a batch, which may be the emissions of a CRF.

    Shapes: (N, D) -> (P, L).
    """

    def __init__(self, inputs: int, labels: Sequence[str], *, crf: bool = False) -> None:
        super().__init__()
        self.out = nn.Linear(inputs, len(labels))
        if crf:
            scheme = scheme_of_labels(labels)
            masks = scheme.masks(labels) if scheme else ()
            self.crf = CRF(len(labels), *map(torch.from_numpy, masks))

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        assert batch.token_indices is not None
        out: Tensor = self.out(states.index_select(0, batch.token_indices))
        return out


class MeanHead(nn.Module):
    """Numbers from the mean state of a text, or from [u, v, |u - v|, u · v] of a pair's.

    Shapes: (N, D) -> (S, L). Source: Conneau et al. 2017 (InferSent), section 3.1.
    """

    def __init__(self, inputs: int, outputs: int, *, pairs: bool = False) -> None:
        super().__init__()
        self.texts = 2 if pairs else 1
        self.out = nn.Linear(4 * inputs if pairs else inputs, outputs)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        text = self.texts * batch.layout.sequence_ids + batch.types
        count = self.texts * len(batch.layout.lengths)
        sums = torch.zeros(count, states.shape[1], device=states.device).index_add(0, text, states)
        mean = sums / text.bincount(minlength=count)[:, None]
        if self.texts == 2:
            u, v = mean[::2], mean[1::2]
            mean = torch.cat([u, v, (u - v).abs(), u * v], 1)
        out: Tensor = self.out(mean)
        return out
