"""An encoder and a decoder made of LSTMs or GRUs, with attention between them or none.

Source: Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2015; Luong et al. 2015. As in the
Transformer here, one token embedding serves both, and finds the next word (Press & Wolf 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertkit.batch import Batch, Packed
from bertkit.extensions.classic.recurrent import GRU, Cells, run_packed
from bertkit.extensions.classic.recurrent_config import RecurrentConfig
from bertkit.models.embedding import TokenEmbedding
from bertkit.models.encoder import Encoder
from bertkit.nn.attention import Trace
from bertkit.nn.dropout import Dropout


class Encoded(NamedTuple):
    """What an encoder made of a batch. Shapes: states (N, D) of its last layer; cells (L, S, D),
    where each layer ended.
    """

    states: Tensor
    cells: Cells


class RecurrentEncoder(Encoder):
    """Layers of LSTMs over packed tokens. Shapes: a batch of N tokens -> (N, D)."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.backward_only = config.recurrent.direction == "backward"
        self.embedding = TokenEmbedding(config.vocab, config.hidden, config.dropout, scaled=True)
        self.lstm = _lstm(config, config.hidden, both=config.recurrent.direction == "both")
        self.dropout = Dropout(config.dropout)

    def forward(self, batch: Batch) -> Tensor:
        return self.read(batch).states

    def memory(self, source: Batch) -> Encoded:
        return self.read(source)

    def final_states(self, batch: Batch) -> Tensor:
        """Return the states of the last layer that a decoder starts from. Shapes: (S, D)."""
        return self.read(batch).cells[0][-1]

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

    def begin(self, batch: Batch, memory: None = None) -> tuple[Tensor, RecurrentState]:
        """Return the states of the batch's tokens and the state after each sequence."""
        states, cells = self.read(batch)
        return states, RecurrentState(cells)

    def step(self, state: RecurrentState, ids: Tensor) -> Tensor:
        """Return the states of C more tokens of each sequence. Shapes: (R, C) -> (R, C, D)."""
        return _read_steps(state, ids, self.read)


class SourceStates(NamedTuple):
    """The states that a decoder may look at, a row for each sequence that it writes.

    Shapes: states (R, T, D); keys (R, T, D), what its score compares them by; real (R, T), False
    behind the end of a source.
    """

    states: Tensor
    keys: Tensor
    real: Tensor

    def rows(self, rows: Tensor | slice) -> SourceStates:
        """Select sequences, in this order."""
        return SourceStates(*(part[rows] for part in self))

    def joined(self, other: SourceStates) -> SourceStates:
        """Append the sources of other sequences, padded to the longest source."""
        pairs = zip(self, other, strict=True)
        return SourceStates(*(pad_sequence([*a, *b], batch_first=True) for a, b in pairs))


class RecurrentState:
    """Cells of the sequences that LSTMs generate, and the states that a decoder attends to."""

    def __init__(self, cells: Cells, sources: SourceStates | None = None) -> None:
        self.cells, self.sources = cells, sources
        self.steps: list[Cells] = []
        """Cells after each token of the last step."""

    def advance(self, counts: Tensor) -> None:
        """Keep this number of tokens of each sequence from the last step. Shapes: (R,)."""
        rows = torch.arange(len(counts), device=counts.device)
        every = zip(self.cells, *self.steps, strict=True)
        hidden, cell = (torch.stack(part)[counts, :, rows].transpose(0, 1) for part in every)
        self.cells, self.steps = (hidden.contiguous(), cell.contiguous()), []

    def keep(self, rows: Tensor) -> None:
        """Select sequences, in this order; an index may occur twice."""
        self.cells = self.cells[0][:, rows], self.cells[1][:, rows]
        self.sources = None if self.sources is None else self.sources.rows(rows)

    def branch(self, beams: int) -> RecurrentState:
        """Repeat each sequence `beams` times, as neighbors."""
        rows = torch.arange(self.cells[0].shape[1], device=self.cells[0].device)
        self.keep(rows.repeat_interleave(beams))
        return self

    def join(self, other: RecurrentState) -> None:
        """Append the sequences of another state."""
        hidden, cell = (torch.cat(part, 1) for part in zip(self.cells, other.cells, strict=True))
        self.cells = hidden, cell
        if self.sources is not None and other.sources is not None:
            self.sources = self.sources.joined(other.sources)


def _read_steps(
    state: RecurrentState,
    ids: Tensor,
    read: Callable[[Batch, Cells], tuple[Tensor, Cells]],
) -> Tensor:
    """Read C tokens of each sequence, one after another. Shapes: (R, C) -> (R, C, D)."""
    cells, columns = state.cells, []
    layout, state.steps = Packed.of([1] * len(ids)).to(ids.device), []
    for column in ids.T:
        states, cells = read(Batch(column, torch.zeros_like(column), layout), cells)
        state.steps.append(cells)
        columns.append(states)
    return torch.stack(columns, 1)


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


SCORES: dict[str, Any] = {"luong": GeneralScore, "bahdanau": AdditiveScore}


class RecurrentDecoder(Encoder):
    """Layers of LSTMs that start where an encoder's ended. Shapes: a batch of N tokens -> (N, D).

    With a context c_t what it gives is tanh(W_c [c_t; h_t]): Luong et al. 2015, equation 5. A
    `trace` collects the weights of attention as those of one layer with one head.

    Bahdanau's and Cho's decoders start from a map of the last state, and their words come from a
    maxout layer; all four are the same here, so that they differ in their context alone.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden
        self.kind = config.recurrent.attention
        fed = self.kind in ("context", "bahdanau")
        self.embedding = TokenEmbedding(config.vocab, config.hidden, config.dropout, scaled=True)
        self.lstm = _lstm(config, 2 * width if fed else width)
        self.score = SCORES[self.kind](width) if self.kind in SCORES else None
        self.combine = None if self.kind == "none" else nn.Linear(2 * width, width, bias=False)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, batch: Batch, trace: Trace | None = None, memory: Encoded | None = None
    ) -> Tensor:
        assert memory is not None
        return self.begin(batch, memory, trace)[0]

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
        assert self.score is not None
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

    def begin(
        self, batch: Batch, memory: Encoded, trace: Trace | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Return the states of the batch's tokens and the state after each sequence."""
        sources, cells = self.start(batch, memory)
        states, cells = self.read(batch, sources, cells, trace)
        return states, RecurrentState(cells, sources)

    def step(self, state: RecurrentState, ids: Tensor) -> Tensor:
        """Return the states of C more tokens of each sequence. Shapes: (R, C) -> (R, C, D)."""
        return _read_steps(state, ids, lambda batch, cells: self.read(batch, state.sources, cells))

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
        and weights of all, and the cells behind the last of each sequence.
        """
        ended, parts, places, done = [], [], [], 0
        for step in range(layout.longest):
            over = layout.count_up_to(step) - done  # the shortest come first, and leave first
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


def _lstm(config: RecurrentConfig, inputs: int, *, both: bool = False) -> nn.LSTM | GRU:
    between = config.dropout if config.layers > 1 else 0.0  # torch warns of one without a place
    width = config.hidden // 2 if both else config.hidden
    kind = nn.LSTM if config.recurrent.cell == "lstm" else GRU
    return kind(inputs, width, config.layers, dropout=between, bidirectional=both)


def _side_by_side(cells: Tensor, layers: int) -> Tensor:
    """Both directions of each layer as one. Shapes: (L · 2, S, D / 2) -> (L, S, D)."""
    both: Tensor = cells.view(layers, len(cells) // layers, *cells.shape[1:])
    return both.transpose(1, 2).flatten(2)
