"""The Transformer: an embedding and a stack of blocks on packed tokens, encoder or decoder."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from bertkit.batch import Batch, Packed
from bertkit.errors import ConfigError
from bertkit.models.block import Block, Memory, norm_of
from bertkit.models.config import (
    DisentangledPositions,
    RelativePositions,
    RotaryPositions,
    TransformerConfig,
)
from bertkit.models.embedding import Embedding
from bertkit.models.encoder import Encoder
from bertkit.nn.attention import Trace
from bertkit.nn.attention_context import AttentionContext, LayerRecall
from bertkit.nn.convolution import Convolution
from bertkit.nn.disentangled_attention import SCORE_TERMS, DistanceTable
from bertkit.nn.padding import lengthened
from bertkit.nn.precision import BF16_TILE_ROWS
from bertkit.nn.relative_positions import RelativeBias
from bertkit.nn.rotary_positions import Rotary


class Transformer(Encoder):
    """Tokens in, last states out. Shapes: a batch of N tokens -> (N, D).

    With `attention.cross` it is a decoder, which reads the states `memory` of the batch's source.
    With a `step` of a cache its layers read what the cache holds of each row, and not that again.
    A `trace` collects all layers' states, exact attention weights and each head's output.
    """

    config: TransformerConfig
    embedding: Embedding

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(
            Block(config, first=weights == 0) for weights in range(max(config.depths) + 1)
        )
        positions, convolution = config.positions, config.convolution
        self.relative = None
        if isinstance(positions, RelativePositions):
            causal = config.attention.causal
            self.relative = RelativeBias(positions.buckets, config.heads, causal=causal)
        self.distances = None
        if isinstance(positions, DisentangledPositions):
            if config.attention.causal or config.kv_heads != config.heads:
                raise ConfigError(
                    "positions: disentangled ones are for encoders whose heads have keys of their "
                    "own; leave out attention.causal and attention.kv_heads"
                )
            farthest = positions.farthest or config.max_positions
            norm = norm_of(config.norm, config.hidden)
            self.distances = DistanceTable(
                positions.side_buckets, farthest, config.hidden, config.dropout, norm
            )
        self.convolution = None
        if convolution is not None:
            norm = norm_of(config.norm, config.hidden)
            self.convolution = Convolution(
                config.hidden, convolution.tokens, convolution.activation, config.dropout, norm
            )
        self.norm = norm_of(config.norm, config.hidden) if config.norm.final else None

    def forward(
        self,
        batch: Batch,
        trace: Trace | None = None,
        memory: Tensor | None = None,
        step: LayerRecall | None = None,
    ) -> Tensor:
        x: Tensor = self.embedding(batch)
        tokens = x.shape[0]
        if x.device.type == "cpu" and isinstance(batch.layout, Packed):
            learning = torch.is_grad_enabled() and x.dtype == torch.bfloat16
            x = lengthened(x, rounded(tokens, at_a_time=BF16_TILE_ROWS if learning else 1))
        if trace is not None:
            trace.states.append(x[:tokens])
        everywhere, nearby = self._contexts(batch, x)
        embedded = x
        scale = None if self.config.attention.scaled else 1.0
        recalled = None if memory is None else _memory(batch, memory, scale)
        if step is not None and self.relative is not None:
            step.bias(self.relative.of(*step.positions))
        windows = self.config.windows
        for layer, place in enumerate(self.config.depths):
            context = everywhere if windows[layer] is None else nearby
            if step is not None:
                context = replace(context, recall=step.layer(layer))
                source = AttentionContext(batch.layout, scale=scale, recall=step.source(layer))
                recalled = None if source.recall is None else Memory(None, source)
            x = self.blocks[place](x, context, trace, recalled)
            if self.convolution is not None and layer == 0:
                x = self.convolution(embedded, x, batch.layout)
            if self.norm is not None and layer == self.config.layers - 1:
                x = self.norm(x)
            if trace is not None:
                trace.states.append(x[:tokens])
        return x[:tokens]

    def _contexts(self, batch: Batch, x: Tensor) -> tuple[AttentionContext, AttentionContext]:
        """Of layers whose tokens attend to the whole sequence, and of the others."""
        config, layout = self.config, batch.layout
        bias = None if self.relative is None else self.relative()
        distances = None if self.distances is None else self.distances()
        turned = config.positions if isinstance(config.positions, RotaryPositions) else None
        scale = None if config.attention.scaled else 1.0
        if distances is not None and scale is None:
            scale = (SCORE_TERMS * config.head_width) ** -0.5

        def context(window: int | None, base: float | None = None) -> AttentionContext:
            rotary = None
            if turned is not None:
                rotary = Rotary.of(
                    layout,
                    base or turned.base,
                    rows=x.shape[0],
                    like=x,
                    width=config.head_width,
                    factor=turned.factor,
                )
            return AttentionContext(
                layout,
                causal=config.attention.causal,
                window=narrowest(window, batch.window),
                scale=scale,
                bias=bias,
                rotary=rotary,
                distances=distances,
            )

        everywhere, window = context(None), config.attention.window
        if window is None:
            return everywhere, everywhere
        return everywhere, context(window.tokens, window.base)


def narrowest(*windows: int | None) -> int | None:
    """The narrowest of some windows, of which None is no limit."""
    return min((window for window in windows if window is not None), default=None)


def _memory(batch: Batch, states: Tensor, scale: float | None) -> Memory:
    """The states of the batch's source, in the order of its targets."""
    assert batch.source is not None
    layout = batch.source.layout
    if batch.source_order is not None:
        layout, tokens = layout.reorder(batch.source_order)
        states = states.index_select(0, tokens)
    return Memory(states, AttentionContext(batch.layout, cross=layout, scale=scale))


def rounded(tokens: int, at_a_time: int = 1) -> int:
    """The next number with at most six binary digits before its zeros, up to 1/32 more, that is a
    multiple of `at_a_time`.

    oneDNN compiles code for each new shape of a matrix product, and batches of a hundred lengths
    would make it spend a tenth of the time of small steps on that (notes/2026-11.md).
    """
    step = max(at_a_time, 1 << max(0, tokens.bit_length() - 6))
    return tokens + -tokens % step
