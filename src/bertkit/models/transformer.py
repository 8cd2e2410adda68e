"""The Transformer: an embedding and a stack of blocks on packed tokens, encoder or decoder."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch, Packed
from bertkit.models.block import Block, Memory, norm_of
from bertkit.models.config import RelativePositions, RotaryPositions, TransformerConfig
from bertkit.models.embedding import Embedding
from bertkit.nn.attention import Trace
from bertkit.nn.cache import Step
from bertkit.nn.context import AttentionContext
from bertkit.nn.relative import RelativeBias
from bertkit.nn.rotary import Rotary


class Transformer(nn.Module):
    """Tokens in, last states out. Shapes: a batch of N tokens -> (N, D).

    With `attention.cross` it is a decoder, which reads the states `memory` of the batch's source.
    With a `step` of a cache its layers read what the cache holds of each row, and not that again.
    A `trace` collects all layers' states, exact attention weights and each head's output.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(
            Block(config, first=weights == 0) for weights in range(max(config.depths) + 1)
        )
        relative = config.positions if isinstance(config.positions, RelativePositions) else None
        self.relative = None
        if relative is not None:
            causal = config.attention.causal
            self.relative = RelativeBias(relative.buckets, config.heads, causal=causal)
        self.norm = norm_of(config.norm, config.hidden) if config.norm.final else None

    def forward(
        self,
        batch: Batch,
        trace: Trace | None = None,
        memory: Tensor | None = None,
        step: Step | None = None,
    ) -> Tensor:
        x: Tensor = self.embedding(batch)
        tokens = x.shape[0]
        if x.device.type == "cpu" and isinstance(batch.layout, Packed):
            x = F.pad(x, (0, 0, 0, rounded(tokens) - tokens))
        if trace is not None:
            trace.states.append(x[:tokens])
        everywhere, nearby = self._contexts(batch.layout, x)
        scale = None if self.config.attention.scaled else 1.0
        recalled = None if memory is None else _memory(batch, memory, scale)
        if step is not None and self.relative is not None:
            step.bias(self.relative.of(step.places.queries, step.places.keys))
        windows = self.config.windows
        for layer, place in enumerate(self.config.depths):
            context = everywhere if windows[layer] is None else nearby
            if step is not None:
                context = replace(context, recall=step.layer(layer))
                source = AttentionContext(batch.layout, scale=scale, recall=step.source(layer))
                recalled = None if source.recall is None else Memory(None, source)
            x = self.blocks[place](x, context, trace, recalled)
            if self.norm is not None and layer == self.config.layers - 1:
                x = self.norm(x)
            if trace is not None:
                trace.states.append(x[:tokens])
        return x[:tokens]

    def _contexts(self, layout: Packed, x: Tensor) -> tuple[AttentionContext, AttentionContext]:
        """Of layers whose tokens attend to the whole sequence, and of the others."""
        config = self.config
        bias = None if self.relative is None else self.relative()
        base = config.positions.base if isinstance(config.positions, RotaryPositions) else None

        def context(window: int | None, base: float | None) -> AttentionContext:
            rotary = (
                None
                if base is None
                else Rotary.of(layout, base, rows=x.shape[0], like=x, width=config.head_width)
            )
            causal = config.attention.causal
            scale = None if config.attention.scaled else 1.0
            return AttentionContext(
                layout, causal=causal, window=window, scale=scale, bias=bias, rotary=rotary
            )

        everywhere, window = context(None, base), config.attention.window
        if window is None:
            return everywhere, everywhere
        return everywhere, context(window.tokens, window.base or base)


def _memory(batch: Batch, states: Tensor, scale: float | None) -> Memory:
    """The states of the batch's source, in the order of its targets."""
    assert batch.source is not None
    layout = batch.source.layout
    if batch.source_order is not None:
        layout, tokens = layout.reordered(batch.source_order)
        states = states.index_select(0, tokens)
    return Memory(states, AttentionContext(batch.layout, cross=layout, scale=scale))


def rounded(tokens: int) -> int:
    """The next number with at most six binary digits before its zeros: up to 1/32 more.

    oneDNN compiles code for each new shape of a matrix product, and batches of a hundred lengths
    would make it spend a tenth of the time of small steps on that (docs/log.md).
    """
    return tokens + -tokens % (1 << max(0, tokens.bit_length() - 6))
