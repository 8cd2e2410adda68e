"""Encoders and decoders with LSTMs or GRUs, with or without attention.

Sources: Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2015; Luong et al. 2015. As in
bertkit's Transformer, the encoder, the decoder and the LM head share one token embedding (Press &
Wolf 2017).
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
    """Output of an encoder.

    Shapes:
        states: (N, D), the states of the last layer.
        cells: both (L, S, D), the final hidden states and cells of each layer.
    """

    states: Tensor
    cells: Cells


class RecurrentEncoder(Encoder):
    """Encoder with LSTM or GRU layers.

    Shapes:
        batch: N packed tokens; returns (N, D).
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.backward_only = config.recurrent.direction == "backward"
        self.embedding = TokenEmbedding(config.vocab, config.hidden, config.dropout, scaled=True)
        self.lstm = _lstm(config, config.hidden, bidirectional=config.recurrent.direction == "both")
        self.dropout = Dropout(config.dropout)

    def forward(self, batch: Batch) -> Tensor:
        return self.read(batch).states

    def memory(self, source: Batch) -> Encoded:
        return self.read(source)

    def final_states(self, batch: Batch) -> Tensor:
        """Compute the final states of the last layer, from which a decoder starts.

        Shapes:
            Returns (S, D).
        """
        return self.read(batch).cells[0][-1]

    def read(self, batch: Batch, cells: Cells | None = None) -> Encoded:
        """Compute the states of all tokens, and the final states, from which a decoder starts.

        Args:
            batch: The batch.
            cells: Initial states of a left-to-right encoder, both (L, S, D). Default: zeros.

        Returns:
            The states. If the encoder has two directions, their states are concatenated.
        """
        x, layout = self.embedding(batch), batch.layout
        assert isinstance(layout, Packed)
        if self.backward_only:
            reversed_ids = (layout.cu_seqlens[1:] - 1)[layout.sequence_ids] - layout.positions
            out, cells = run_packed(self.lstm, x[reversed_ids], layout.lengths)
            out = out[reversed_ids]
        else:
            out, cells = run_packed(self.lstm, x, layout.lengths, cells)
        hidden, cell = (_concat_directions(part, self.config.layers) for part in cells)
        return Encoded(self.dropout(out), (hidden, cell))

    def begin(self, batch: Batch, memory: None = None) -> tuple[Tensor, RecurrentState]:
        """Compute the states of all tokens in a batch, and the state after each sequence."""
        states, cells = self.read(batch)
        return states, RecurrentState(cells)

    def step(self, state: RecurrentState, ids: Tensor) -> Tensor:
        """Process C more tokens of each sequence, and return their states.

        Shapes:
            ids: (R, C); returns (R, C, D).
        """
        return _read_steps(state, ids, self.read)


class SourceStates(NamedTuple):
    """Source states that a decoder attends to, with one row per generated sequence.

    Shapes:
        states: (R, T, D).
        keys: (R, T, D), the keys for the score function.
        real: (R, T), False for padding.
    """

    states: Tensor
    keys: Tensor
    real: Tensor

    def rows(self, rows: Tensor | slice) -> SourceStates:
        """Return the sources of the sequences with these indices, in this order."""
        return SourceStates(*(part[rows] for part in self))

    def joined(self, other: SourceStates) -> SourceStates:
        """Return these sources followed by other sources, padded to the length of the longest."""
        pairs = zip(self, other, strict=True)
        return SourceStates(*(pad_sequence([*a, *b], batch_first=True) for a, b in pairs))


class RecurrentState:
    """State between two decoding steps: the cells of each sequence, and the attended sources."""

    def __init__(self, cells: Cells, sources: SourceStates | None = None) -> None:
        self.cells, self.sources = cells, sources
        self.steps: list[Cells] = []
        """Cells after each token of the last step."""

    def advance(self, counts: Tensor) -> None:
        """Keep only the first `counts` tokens of each sequence in the last step.

        Shapes:
            counts: (R,).
        """
        rows = torch.arange(len(counts), device=counts.device)
        steps = zip(self.cells, *self.steps, strict=True)
        hidden, cell = (torch.stack(part)[counts, :, rows].transpose(0, 1) for part in steps)
        self.cells, self.steps = (hidden.contiguous(), cell.contiguous()), []

    def keep(self, rows: Tensor) -> None:
        """Keep only the sequences with these indices, in this order.

        An index may occur repeatedly.
        """
        self.cells = self.cells[0][:, rows], self.cells[1][:, rows]
        self.sources = None if self.sources is None else self.sources.rows(rows)

    def branch(self, beams: int) -> RecurrentState:
        """Repeat each sequence `beams` times. The copies of a sequence are adjacent."""
        rows = torch.arange(self.cells[0].shape[1], device=self.cells[0].device)
        self.keep(rows.repeat_interleave(beams))
        return self

    def join(self, other: RecurrentState) -> None:
        """Append the sequences of another state to this state."""
        hidden, cell = (torch.cat(part, 1) for part in zip(self.cells, other.cells, strict=True))
        self.cells = hidden, cell
        if self.sources is not None and other.sources is not None:
            self.sources = self.sources.joined(other.sources)


def _read_steps(
    state: RecurrentState, ids: Tensor, read: Callable[[Batch, Cells], tuple[Tensor, Cells]]
) -> Tensor:
    """Process C tokens of each sequence one after another, and return their states.

    Shapes:
        ids: (R, C); returns (R, C, D).
    """
    cells, columns = state.cells, []
    layout, state.steps = Packed.of([1] * len(ids)).to(ids.device), []
    for column in ids.T:
        states, cells = read(Batch(column, torch.zeros_like(column), layout), cells)
        state.steps.append(cells)
        columns.append(states)
    return torch.stack(columns, 1)


class GeneralScore(nn.Module):
    """Attention score h_t W_a h̄_s. Luong et al. 2015, equation 8, "general"."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Compute the score of each query and key.

        Shapes:
            queries: (R, C, D); keys: (R, T, D); returns (R, C, T).
        """
        return queries @ keys.mT


class AdditiveScore(nn.Module):
    """Attention score v_a tanh(W_a s_{i-1} + U_a h_j). Bahdanau et al. 2015, A.1.2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1, bias=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Compute the score of each query and key.

        Shapes:
            queries: (R, C, D); keys: (R, T, D); returns (R, C, T).
        """
        hidden = torch.tanh(self.query(queries)[:, :, None] + keys[:, None])
        scores: Tensor = self.out(hidden).squeeze(-1)
        return scores


SCORES: dict[str, Any] = {"luong": GeneralScore, "bahdanau": AdditiveScore}


class RecurrentDecoder(Encoder):
    """Decoder with LSTM or GRU layers, which starts from the final states of an encoder.

    If the decoder has a context c_t, its output is tanh(W_c [c_t; h_t]) (Luong et al. 2015,
    equation 5). A `trace` records the attention weights as one layer with one head.

    In their papers, the decoders of Bahdanau et al. and Cho et al. start from a projection of the
    last encoder state, and predict words with a maxout layer. Here, the four types of decoders
    differ only in their context.

    Shapes:
        batch: N packed tokens; returns (N, D).
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden
        self.kind = config.recurrent.attention
        has_context_input = self.kind in ("context", "bahdanau")
        self.embedding = TokenEmbedding(config.vocab, config.hidden, config.dropout, scaled=True)
        self.lstm = _lstm(config, 2 * width if has_context_input else width)
        self.score = SCORES[self.kind](width) if self.kind in SCORES else None
        self.combine = None if self.kind == "none" else nn.Linear(2 * width, width, bias=False)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, batch: Batch, trace: Trace | None = None, memory: Encoded | None = None
    ) -> Tensor:
        assert memory is not None
        return self.begin(batch, memory, trace)[0]

    def start(self, batch: Batch, memory: Encoded) -> tuple[SourceStates | None, Cells]:
        """Return the source states and the initial states of the sequences in a batch.

        Both are in the order of the sequences.
        """
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
        positions = torch.arange(layout.longest, device=states.device)
        assert self.score is not None
        real = positions < layout.counts[:, None]
        return SourceStates(states, self.score.key(states), real).rows(order), cells

    def read(
        self, batch: Batch, sources: SourceStates | None, cells: Cells, trace: Trace | None = None
    ) -> tuple[Tensor, Cells]:
        """Compute the states of all tokens in a batch, and the state after each sequence.

        Args:
            batch: N tokens of R sequences.
            sources: Source states for the R sequences.
            cells: Initial states, both (L, R, D).
            trace: Object that records the attention weights. Default: they are not recorded.

        Shapes:
            returns: (N, D), and both states (L, R, D).
        """
        x, layout = self.embedding(batch), batch.layout
        assert isinstance(layout, Packed)
        if sources is None or self.combine is None:
            out, cells = run_packed(self.lstm, x, layout.lengths, cells)
            return self.dropout(out), cells
        weights = None
        if self.kind == "bahdanau":
            out, context, weights, cells = self._attend_per_step(x, layout, sources, cells)
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
            rows_of_sequences = zip(weights.split(list(layout.lengths)), counts, strict=True)
            trace.cross.append([rows[None, :, :count] for rows, count in rows_of_sequences])
        states = torch.tanh(self.combine(torch.cat([context, out], -1)))
        return self.dropout(states), cells

    def begin(
        self, batch: Batch, memory: Encoded, trace: Trace | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Compute the states of all tokens in a batch, and the state after each sequence."""
        sources, cells = self.start(batch, memory)
        states, cells = self.read(batch, sources, cells, trace)
        return states, RecurrentState(cells, sources)

    def step(self, state: RecurrentState, ids: Tensor) -> Tensor:
        """Process C more tokens of each sequence, and return their states.

        Shapes:
            ids: (R, C); returns (R, C, D).
        """
        return _read_steps(state, ids, lambda batch, cells: self.read(batch, state.sources, cells))

    def _attend(self, queries: Tensor, sources: SourceStates) -> tuple[Tensor, Tensor]:
        """Compute the weighted sum of source states for each query, and the attention weights.

        Shapes:
            queries: (R, C, D); returns (R, C, D) and (R, C, T).
        """
        assert self.score is not None
        scores = self.score(queries, sources.keys).masked_fill(~sources.real[:, None], -torch.inf)
        weights = torch.softmax(scores, -1)
        return weights @ sources.states, weights

    def _attend_per_step(
        self, x: Tensor, layout: Packed, sources: SourceStates, cells: Cells
    ) -> tuple[Tensor, Tensor, Tensor, Cells]:
        """Run the LSTM token by token. Attention is computed before each token.

        Returns:
            The outputs, contexts and attention weights of all tokens, and the state after each
            sequence.
        """
        final_cells, parts, indices, done = [], [], [], 0
        for step in range(layout.longest):
            # Sequences are sorted by length, so the first sequences end first.
            finished = layout.count_up_to(step) - done
            if finished:
                final_cells.append([part[:, :finished] for part in cells])
                cells = cells[0][:, finished:], cells[1][:, finished:]
                sources, done = sources.rows(slice(finished, None)), done + finished
            indices.append(layout.first[done:] + step)
            context, weights = self._attend(cells[0][-1][:, None], sources)
            inputs = torch.cat([x[indices[-1]], context[:, 0]], -1)
            out, cells = self.lstm(inputs[None], (cells[0].contiguous(), cells[1].contiguous()))
            parts.append((out[0], context[:, 0], weights[:, 0]))
        final_cells.append(list(cells))
        order = torch.cat(indices).argsort()
        out, context, weights = (torch.cat(part)[order] for part in zip(*parts, strict=True))
        hidden, cell = (torch.cat(part, 1) for part in zip(*final_cells, strict=True))
        return out, context, weights, (hidden, cell)


def _lstm(config: RecurrentConfig, inputs: int, *, bidirectional: bool = False) -> nn.LSTM | GRU:
    # torch prints a warning if dropout is set for a single layer.
    dropout = config.dropout if config.layers > 1 else 0.0
    width = config.hidden // 2 if bidirectional else config.hidden
    layer_type = nn.LSTM if config.recurrent.cell == "lstm" else GRU
    return layer_type(inputs, width, config.layers, dropout=dropout, bidirectional=bidirectional)


def _concat_directions(cells: Tensor, layers: int) -> Tensor:
    """Concatenate the states of both directions in each layer.

    Shapes:
        cells: (2L, S, D / 2), or (L, S, D) for one direction; returns (L, S, D).
    """
    split: Tensor = cells.view(layers, len(cells) // layers, *cells.shape[1:])
    return split.transpose(1, 2).flatten(2)
