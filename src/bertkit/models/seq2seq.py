"""An encoder and a decoder made of LSTMs or GRUs, with attention between them or none.

Source: Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2015; Luong et al. 2015. As in the
Transformer here, one token embedding serves both, and finds the next word (Press & Wolf 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch, Packed
from bertkit.models.config import RecurrentSettings, TransformerConfig
from bertkit.models.embedding import Embedding
from bertkit.models.recurrent import GRU, Cells, run_packed
from bertkit.nn.attention import Trace
from bertkit.nn.dropout import Dropout


class Encoded(NamedTuple):
    """What an encoder made of a batch. Shapes: states (N, D) of its last layer; cells (L, S, D),
    where each layer ended."""

    states: Tensor
    cells: Cells


class RecurrentEncoder(nn.Module):
    """Layers of LSTMs over packed tokens. Shapes: a batch of N tokens -> (N, D)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, settings = config, settings_of(config)
        self.backward_only = settings.direction == "backward"
        self.embedding = Embedding(config)
        self.lstm = _lstm(config, config.hidden, both=settings.direction == "both")
        self.dropout = Dropout(config.dropout)

    def forward(self, batch: Batch) -> Tensor:
        return self.read(batch).states

    def read(self, batch: Batch, cells: Cells | None = None) -> Encoded:
        """The states, and the cells that a decoder starts from; of both directions side by side.

        One that reads forward may go on from `cells` (L, S, D), where it stopped.
        """
        x, layout = self.embedding(batch), batch.layout
        assert isinstance(layout, Packed)
        if self.backward_only:
            turned = (layout.cu_seqlens[1:] - 1)[layout.sequence_ids] - layout.positions
            out, cells = run_packed(self.lstm, x[turned], layout.lengths)
            out = out[turned]
        else:
            out, cells = run_packed(self.lstm, x, layout.lengths, cells)
        hidden, cell = (_side_by_side(part, self.config.layers) for part in cells)
        return Encoded(self.dropout(out), (hidden, cell))


@dataclass(frozen=True)
class SourceStates:
    """The states that a decoder may look at, a row for each sequence that it writes.

    Shapes: states (R, T, D); keys (R, T, D), what its score compares them by; real (R, T), False
    behind the end of a source.
    """

    states: Tensor
    keys: Tensor
    real: Tensor

    def rows(self, rows: Tensor | slice) -> SourceStates:
        """These rows alone, in this order."""
        return SourceStates(self.states[rows], self.keys[rows], self.real[rows])

    def joined(self, other: SourceStates) -> SourceStates:
        """The rows of another behind these."""
        most = max(self.real.shape[1], other.real.shape[1])

        def both(one: Tensor, two: Tensor) -> Tensor:
            # padding goes before the axes from the last one on
            missing = [(0, 0) * (x.ndim - 2) + (0, most - x.shape[1]) for x in (one, two)]
            return torch.cat([F.pad(x, p) for x, p in zip((one, two), missing, strict=True)])

        return SourceStates(
            both(self.states, other.states),
            both(self.keys, other.keys),
            both(self.real, other.real),
        )


class GeneralScore(nn.Module):
    """h_t W_a h̄_s. Luong et al. 2015, equation 8, "general"."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Shapes: queries (R, C, D), keys (R, T, D) -> (R, C, T)."""
        return queries @ keys.mT


class AdditiveScore(nn.Module):
    """v_a tanh(W_a s_{i-1} + U_a h_j). Bahdanau et al. 2015, A.1.2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Shapes: queries (R, C, D), keys (R, T, D) -> (R, C, T)."""
        both = torch.tanh(self.query(queries)[:, :, None] + keys[:, None])
        scores: Tensor = self.out(both).squeeze(-1)
        return scores


class RecurrentDecoder(nn.Module):
    """Layers of LSTMs that start where an encoder's ended. Shapes: a batch of N tokens -> (N, D).

    With a context c_t what it gives is tanh(W_c [c_t; h_t]): Luong et al. 2015, equation 5. A
    `trace` collects the weights of attention as those of one layer with one head.

    Bahdanau's and Cho's decoders start from a map of the last state, and their words come from a
    maxout layer; all four are the same here, so that they differ in their context alone.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden
        self.kind = settings_of(config).attention
        fed = self.kind in ("context", "bahdanau")
        self.embedding = Embedding(config)
        self.lstm = _lstm(config, 2 * width if fed else width)
        self.score: nn.Module | None = None
        if self.kind == "luong":
            self.score = GeneralScore(width)
        elif self.kind == "bahdanau":
            self.score = AdditiveScore(width)
        self.combine = None if self.kind == "none" else nn.Linear(2 * width, width, bias=False)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, batch: Batch, trace: Trace | None = None, memory: Encoded | None = None
    ) -> Tensor:
        assert memory is not None
        sources, cells = self.start(batch, memory)
        return self.read(batch, sources, cells, trace)[0]

    def start(self, batch: Batch, memory: Encoded) -> tuple[SourceStates | None, Cells]:
        """What it may look at and starts from, in the order of the batch's sequences."""
        assert batch.source is not None
        layout, (hidden, cell) = batch.source.layout, memory.cells
        order = batch.source_order
        if order is None:
            order = torch.arange(layout.sequences, device=hidden.device)
        cells = hidden[:, order], cell[:, order]
        if self.kind == "none":
            return None, cells
        if self.kind == "context":
            last = cells[0][-1][:, None]
            return SourceStates(last, last, last.new_ones(last.shape[:2], dtype=torch.bool)), cells
        assert isinstance(layout, Packed)
        states = memory.states.new_zeros(layout.sequences, layout.longest, self.config.hidden)
        states[layout.sequence_ids, layout.positions] = memory.states
        places = torch.arange(layout.longest, device=states.device)
        assert isinstance(self.score, GeneralScore | AdditiveScore)
        real = places < layout.counts[:, None]
        return SourceStates(states, self.score.key(states), real).rows(order), cells

    def read(
        self, batch: Batch, sources: SourceStates | None, cells: Cells, trace: Trace | None = None
    ) -> tuple[Tensor, Cells]:
        """The states of the batch's tokens, and the cells behind the last of each sequence.

        Shapes: N tokens of R sequences, sources of R rows, cells (L, R, D) -> (N, D).
        """
        x, layout = self.embedding(batch), batch.layout
        assert isinstance(layout, Packed)
        if sources is None or self.combine is None:
            out, cells = run_packed(self.lstm, x, layout.lengths, cells)
            return self.dropout(out), cells
        weights = None
        if self.kind == "bahdanau":
            out, context, weights, cells = self._attending(x, layout, sources, cells)
        elif self.kind == "luong":
            out, cells = run_packed(self.lstm, x, layout.lengths, cells)
            queries = out.new_zeros(layout.sequences, layout.longest, out.shape[1])
            queries[layout.sequence_ids, layout.positions] = out
            context, weights = (
                part[layout.sequence_ids, layout.positions]
                for part in self._attend(queries, sources)
            )
        else:
            context = sources.states[layout.sequence_ids, 0]
            out, cells = run_packed(self.lstm, torch.cat([x, context], -1), layout.lengths, cells)
        if trace is not None and weights is not None:
            counts = sources.real.sum(1).tolist()
            each = zip(weights.split(list(layout.lengths)), counts, strict=True)
            trace.cross.append([rows[None, :, :count] for rows, count in each])
        states = torch.tanh(self.combine(torch.cat([context, out], -1)))
        return self.dropout(states), cells

    def _attend(self, queries: Tensor, sources: SourceStates) -> tuple[Tensor, Tensor]:
        """The mean of the states that each query looks at, and how much at each.

        Shapes: (R, C, D) -> (R, C, D), (R, C, T).
        """
        assert self.score is not None
        scores = self.score(queries, sources.keys).masked_fill(~sources.real[:, None], -torch.inf)
        weights = torch.softmax(scores, -1)
        return weights @ sources.states, weights

    def _attending(
        self, x: Tensor, layout: Packed, sources: SourceStates, cells: Cells
    ) -> tuple[Tensor, Tensor, Tensor, Cells]:
        """Token by token, as each looks at the source before the LSTM reads it: outputs, contexts
        and weights of all, and the cells behind the last of each sequence."""
        ended, parts, places, done = [], [], [], 0
        for step in range(layout.longest):
            over = layout.up_to(step) - done  # the shortest come first, and leave first
            if over:
                ended.append([part[:, :over] for part in cells])
                cells = cells[0][:, over:], cells[1][:, over:]
                sources, done = sources.rows(slice(over, None)), done + over
            places.append(layout.first[done:] + step)
            context, weights = self._attend(cells[0][-1][:, None], sources)
            read = torch.cat([x[places[-1]], context[:, 0]], -1)
            out, cells = self.lstm(read[None], (cells[0].contiguous(), cells[1].contiguous()))
            parts.append((out[0], context[:, 0], weights[:, 0]))
        ended.append(list(cells))
        back = torch.cat(places).argsort()
        out, context, weights = (torch.cat(part)[back] for part in zip(*parts, strict=True))
        hidden, cell = (torch.cat(part, 1) for part in zip(*ended, strict=True))
        return out, context, weights, (hidden, cell)


def settings_of(config: TransformerConfig) -> RecurrentSettings:
    """The settings of LSTMs, of a stack that is made of them."""
    assert config.recurrent is not None
    return config.recurrent


def _lstm(config: TransformerConfig, inputs: int, *, both: bool = False) -> nn.LSTM | GRU:
    between = config.dropout if config.layers > 1 else 0.0  # torch warns of one without a place
    width = config.hidden // 2 if both else config.hidden
    kind = nn.LSTM if settings_of(config).cell == "lstm" else GRU
    return kind(inputs, width, config.layers, dropout=between, bidirectional=both)


def _side_by_side(cells: Tensor, layers: int) -> Tensor:
    """Both directions of each layer as one. Shapes: (L · 2, S, D / 2) -> (L, S, D)."""
    both: Tensor = cells.view(layers, len(cells) // layers, *cells.shape[1:])
    return both.transpose(1, 2).flatten(2)
