"""What a token is before any context: piece + position + segment. Devlin et al. 2019, figure 2."""

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


class Embedding(nn.Module):
    """The sum of up to three vectors, normalized, and projected to D. Shapes: (N,) ids -> (N, D).

    Source of the projection: Lan et al. 2020, section 3.1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, positions = config.width, config.learned_positions
        self.tokens = EmbeddingTable(config.vocab, width)
        self.scale = math.sqrt(width) if config.scale_embedding else None
        self.positions = EmbeddingTable(positions, width) if positions else None
        self.sinusoidal = isinstance(config.positions, SinusoidalPositions)
        self.types = EmbeddingTable(config.token_types, width) if config.token_types else None
        self.norm = norm_of(config.norm, width) if config.norm.embedding else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.widen = nn.Linear(width, config.hidden) if width != config.hidden else None

    def parts(self, batch: Batch) -> dict[str, Tensor]:
        """The vectors by name. Shapes: (N, E) each, or (E,) where it is the same for all tokens."""
        tokens = self.tokens(batch.ids)
        if self.scale is not None:
            tokens = tokens * self.scale
        vectors: dict[str, Tensor] = {"token": tokens}
        if self.positions is not None:
            vectors["position"] = self.positions(batch.layout.positions)
        if self.sinusoidal:
            waves = sinusoids(batch.layout.positions, self.tokens.embedding_dim)
            vectors["position"] = waves.to(vectors["token"].dtype)
        if self.types is not None:
            one = self.types.num_embeddings == 1  # whatever the segment (RoBERTa)
            vectors["segment"] = self.types.weight[0] if one else self.types(batch.types)
        return vectors

    def added(self, batch: Batch) -> Tensor:
        """Their sum, before it is normalized. Shapes: (N, E)."""
        return functools.reduce(torch.add, self.parts(batch).values())

    def forward(self, batch: Batch) -> Tensor:
        x: Tensor = self.dropout(self.norm(self.added(batch)))
        return x if self.widen is None else self.widen(x)
