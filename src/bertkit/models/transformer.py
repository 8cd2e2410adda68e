"""The Transformer encoder: an embedding and a stack of blocks on packed tokens."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.models.config import TransformerConfig
from bertkit.nn.attention import Trace
from bertkit.nn.block import Block
from bertkit.nn.embedding import Embedding


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
            length=config.length,
            types=config.types,
            norm_eps=config.norm_eps,
            dropout=config.dropout,
        )
        self.blocks = nn.ModuleList(
            Block(
                hidden=config.hidden,
                heads=config.heads,
                intermediate=config.intermediate,
                activation=config.activation,
                norm_eps=config.norm_eps,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
            )
            for _ in range(max(config.depths) + 1)
        )

    def forward(self, batch: Batch, trace: Trace | None = None) -> Tensor:
        x: Tensor = self.embedding(batch)
        tokens = x.shape[0]
        if x.device.type == "cpu":
            x = F.pad(x, (0, 0, 0, rounded(tokens) - tokens))
        if trace is not None:
            trace.states.append(x[:tokens])
        for place in self.config.depths:
            x = self.blocks[place](x, batch.layout, trace)
            if trace is not None:
                trace.states.append(x[:tokens])
        return x[:tokens]


def rounded(tokens: int) -> int:
    """The next number with at most six binary digits before its zeros: up to 1/32 more.

    oneDNN compiles code for each new shape of a matrix product, and batches of a hundred lengths
    would make it spend a tenth of the time of small steps on that (docs/log.md).
    """
    return tokens + -tokens % (1 << max(0, tokens.bit_length() - 6))
