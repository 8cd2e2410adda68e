"""Embedding layer: the sum of token, position, and segment embeddings.

Source: Devlin et al. 2019, figure 2.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.models.block import norm_of
from bertkit.models.config import SinusoidalPositions, TransformerConfig
from bertkit.nn.dropout import Dropout
from bertkit.nn.embedding import EmbeddingTable, sinusoids


class TokenEmbedding(nn.Module):
    """Token embedding with dropout. If `scaled`, vectors are multiplied by √E.

    Shapes:
        (N,) ids -> (N, E).
    """

    def __init__(self, vocab: int, width: int, dropout: float, *, scaled: bool) -> None:
        super().__init__()
        self.tokens = EmbeddingTable(vocab, width)
        self.scale = math.sqrt(width) if scaled else None
        self.dropout = Dropout(dropout)

    def vectors(self, batch: Batch) -> Tensor:
        """Return the vectors of the tokens before dropout. Shapes: (N, E)."""
        vectors: Tensor = self.tokens(batch.ids)
        return vectors if self.scale is None else vectors * self.scale

    def forward(self, batch: Batch) -> Tensor:
        x: Tensor = self.dropout(self.vectors(batch))
        return x


class Embedding(TokenEmbedding):
    """Sum of the token, position, and segment embeddings, normalized and projected to size D.

    The projection is omitted if the embeddings have size D. Source: Lan et al. 2020, section 3.1.

    Shapes:
        (N,) ids -> (N, D).
    """

    def __init__(self, config: TransformerConfig) -> None:
        width, positions = config.width, config.learned_positions
        super().__init__(config.vocab, width, config.dropout, scaled=config.scale_embedding)
        self.positions = EmbeddingTable(positions, width) if positions else None
        self.sinusoidal = isinstance(config.positions, SinusoidalPositions)
        self.types = EmbeddingTable(config.token_types, width) if config.token_types else None
        self.norm = norm_of(config.norm, width) if config.norm.embedding else nn.Identity()
        self.widen = nn.Linear(width, config.hidden) if width != config.hidden else None

    def parts(self, batch: Batch) -> dict[str, Tensor]:
        """Return the embeddings that are added, by name.

        Shapes:
            (N, E) each, or (E,) if an embedding is the same for all tokens.
        """
        vectors = {"token": self.vectors(batch)}
        if self.positions is not None:
            vectors["position"] = self.positions(batch.layout.positions)
        if self.sinusoidal:
            waves = sinusoids(batch.layout.positions, self.tokens.embedding_dim)
            vectors["position"] = waves.to(vectors["token"].dtype)
        if self.types is not None:
            # RoBERTa has only one segment embedding, which all tokens use.
            is_single = self.types.num_embeddings == 1
            vectors["segment"] = self.types.weight[0] if is_single else self.types(batch.types)
        return vectors

    def added(self, batch: Batch) -> Tensor:
        """Return the sum of the embeddings, before normalization. Shapes: (N, E)."""
        return functools.reduce(torch.add, self.parts(batch).values())

    def forward(self, batch: Batch) -> Tensor:
        x: Tensor = self.dropout(self.norm(self.added(batch)))
        return x if self.widen is None else self.widen(x)
