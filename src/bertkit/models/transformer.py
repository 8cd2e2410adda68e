"""Transformer encoder or decoder on packed batches. Vaswani et al. 2017."""

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
from bertkit.nn.attention_context import AttentionContext, StepCache
from bertkit.nn.convolution import Convolution
from bertkit.nn.disentangled_attention import SCORE_TERMS, DistanceTable
from bertkit.nn.padding import pad_to
from bertkit.nn.precision import BF16_TILE_ROWS
from bertkit.nn.relative_positions import RelativeBias
from bertkit.nn.rotary_positions import Rotary


class Transformer(Encoder):
    """Embedding followed by Transformer layers. If `attention.cross` is set, this is a decoder.

    Args:
        config: Settings of the encoder or decoder.

    Raises:
        ConfigError: If disentangled positions are combined with causal or grouped-query attention.

    Source: Vaswani et al. 2017.
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
                    "positions: disentangled positions cannot be combined with attention.causal or "
                    "attention.kv_heads; remove these settings"
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
        step: StepCache | None = None,
    ) -> Tensor:
        """Compute the hidden states of the last layer.

        Args:
            batch: Batch of N tokens.
            trace: Object that collects the states, attention weights, and head outputs of all
                layers.
            memory: Encoder states of `batch.source`, if the model is a decoder.
            step: Key/value cache. If it is given, the batch contains only the new tokens of each
                sequence.

        Returns:
            Hidden states of the tokens.

        Shapes:
            memory: (Nk, D).
            returns: (N, D).
        """
        x: Tensor = self.embedding(batch)
        tokens = x.shape[0]
        if x.device.type == "cpu" and isinstance(batch.layout, Packed):
            is_training = torch.is_grad_enabled() and x.dtype == torch.bfloat16
            x = pad_to(x, pad_rows(tokens, multiple_of=BF16_TILE_ROWS if is_training else 1))
        if trace is not None:
            trace.states.append(x[:tokens])
        global_context, local_context = self._contexts(batch, x)
        embedded = x
        scale = None if self.config.attention.scaled else 1.0
        source = None if memory is None else _memory(batch, memory, scale)
        if step is not None and self.relative is not None:
            step.bias(self.relative.bias_at(*step.positions))
        windows = self.config.windows
        for layer, block in enumerate(self.config.depths):
            context = global_context if windows[layer] is None else local_context
            if step is not None:
                context = replace(context, cache=step.layer(layer))
                cross = AttentionContext(batch.layout, scale=scale, cache=step.source(layer))
                source = None if cross.cache is None else Memory(None, cross)
            x = self.blocks[block](x, context, trace, source)
            if self.convolution is not None and layer == 0:
                x = self.convolution(embedded, x, batch.layout)
            if self.norm is not None and layer == self.config.layers - 1:
                x = self.norm(x)
            if trace is not None:
                trace.states.append(x[:tokens])
        return x[:tokens]

    def _contexts(self, batch: Batch, x: Tensor) -> tuple[AttentionContext, AttentionContext]:
        """Return the context of layers with global attention and of layers with local attention."""
        config, layout = self.config, batch.layout
        bias = None if self.relative is None else self.relative()
        distances = None if self.distances is None else self.distances()
        positions = config.positions if isinstance(config.positions, RotaryPositions) else None
        scale = None if config.attention.scaled else 1.0
        if distances is not None and scale is None:
            scale = (SCORE_TERMS * config.head_width) ** -0.5

        def context(window: int | None, base: float | None = None) -> AttentionContext:
            rotary = None
            if positions is not None:
                rotary = Rotary.of(
                    layout,
                    base or positions.base,
                    rows=x.shape[0],
                    like=x,
                    width=config.head_width,
                    factor=positions.factor,
                )
            return AttentionContext(
                layout,
                causal=config.attention.causal,
                window=min_window(window, batch.window),
                scale=scale,
                bias=bias,
                rotary=rotary,
                distances=distances,
            )

        global_context, window = context(None), config.attention.window
        if window is None:
            return global_context, global_context
        return global_context, context(window.tokens, window.base)


def min_window(*windows: int | None) -> int | None:
    """Return the smallest of several attention windows. A window of None means global attention."""
    return min((window for window in windows if window is not None), default=None)


def _memory(batch: Batch, states: Tensor, scale: float | None) -> Memory:
    """Return the encoder states in the order of the decoder's sequences."""
    assert batch.source is not None
    layout = batch.source.layout
    if batch.source_order is not None:
        layout, tokens = layout.reorder(batch.source_order)
        states = states.index_select(0, tokens)
    return Memory(states, AttentionContext(batch.layout, cross=layout, scale=scale))


def pad_rows(tokens: int, multiple_of: int = 1) -> int:
    """Round a number of tokens up, by at most 1/32, to limit the number of matrix shapes.

    oneDNN compiles code for each new shape of a matrix multiplication. For a hundred different
    lengths, the compilation would take a tenth of the time of small steps (notes/2026-11.md).

    Args:
        tokens: Number of tokens.
        multiple_of: The result is a multiple of this number, even if it grows by more than 1/32.

    Returns:
        The next multiple of `multiple_of` with at most six significant binary digits.
    """
    step = max(multiple_of, 1 << max(0, tokens.bit_length() - 6))
    return tokens + -tokens % step
