"""The Transformer encoder: an embedding and a stack of blocks on packed tokens."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch, Packed
from bertkit.models.config import TransformerConfig
from bertkit.nn.attention import Trace
from bertkit.nn.block import Block
from bertkit.nn.context import AttentionContext
from bertkit.nn.embedding import Embedding
from bertkit.nn.norm import LayerNorm
from bertkit.nn.relative import RelativeBias
from bertkit.nn.rotary import Rotary


class Transformer(nn.Module):
    """Tokens in, last states out. Shapes: a batch of N tokens -> (N, D).

    A `trace` collects all layers' states, exact attention weights and each head's output.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(
            vocab=config.vocab,
            width=config.width,
            hidden=config.hidden,
            positions=config.length if config.rotary is None else 0,
            types=config.types,
            norm_eps=config.norm_eps,
            bias=config.bias,
            dropout=config.dropout,
        )
        self.blocks = nn.ModuleList(
            Block(
                hidden=config.hidden,
                heads=config.heads,
                intermediate=config.intermediate,
                activation=config.activation,
                gated=config.gated,
                norm=config.norm,
                norm_eps=config.norm_eps,
                bias=config.bias,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                attention_output_dropout=config.rate("attention_output_dropout"),
                first=weights == 0,
            )
            for weights in range(max(config.depths) + 1)
        )
        self.relative = (
            None if config.relative is None else RelativeBias(config.relative, config.heads)
        )
        self.norm = (
            LayerNorm(config.hidden, config.norm_eps, bias=config.bias)
            if config.norm == "pre"
            else None
        )

    def forward(self, batch: Batch, trace: Trace | None = None) -> Tensor:
        x: Tensor = self.embedding(batch)
        tokens = x.shape[0]
        if x.device.type == "cpu" and isinstance(batch.layout, Packed):
            x = F.pad(x, (0, 0, 0, rounded(tokens) - tokens))
        if trace is not None:
            trace.states.append(x[:tokens])
        everywhere, nearby = self._contexts(batch.layout, x)
        windows = self.config.windows
        for layer, place in enumerate(self.config.depths):
            context = everywhere if windows[layer] is None else nearby
            x = self.blocks[place](x, context, trace)
            if self.norm is not None and layer == self.config.layers - 1:
                x = self.norm(x)
            if trace is not None:
                trace.states.append(x[:tokens])
        return x[:tokens]

    def _contexts(self, layout: Packed, x: Tensor) -> tuple[AttentionContext, AttentionContext]:
        """Of layers whose tokens attend to the whole sequence, and of the others."""
        config = self.config
        bias = None if self.relative is None else self.relative()

        def context(window: int | None, base: float | None) -> AttentionContext:
            width = config.hidden // config.heads
            rotary = (
                None
                if base is None
                else Rotary.of(layout, base, rows=x.shape[0], like=x, width=width)
            )
            return AttentionContext(layout, window=window, bias=bias, rotary=rotary)

        everywhere = context(None, config.rotary)
        if config.window is None:
            return everywhere, everywhere
        base = None if config.rotary is None else config.window_rotary
        return everywhere, context(config.window, base)


def rounded(tokens: int) -> int:
    """The next number with at most six binary digits before its zeros: up to 1/32 more.

    oneDNN compiles code for each new shape of a matrix product, and batches of a hundred lengths
    would make it spend a tenth of the time of small steps on that (docs/log.md).
    """
    return tokens + -tokens % (1 << max(0, tokens.bit_length() - 6))
