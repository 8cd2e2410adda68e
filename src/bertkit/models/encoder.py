"""The interface of encoders and decoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from bertkit.batch import Batch
from bertkit.models.config import EncoderConfig
from bertkit.models.embedding import TokenEmbedding


class Encoder(nn.Module):
    """Base class of encoders and decoders, which compute hidden states of packed tokens.

    A decoder gets the output of `memory` as an argument of the same name.

    Shapes: a batch of N tokens -> (N, D).
    """

    config: EncoderConfig
    embedding: TokenEmbedding

    def memory(self, source: Batch) -> Any:
        """Return the input of a decoder of the same architecture: by default the hidden states."""
        return self(source)


class FeatureEncoder(Encoder):
    """Base of encoders whose input features are frozen; extensions define them."""

    embedding: Any
    """Module that combines the features; they have no token embedding."""

    def build_head(self, name: str, labels: Sequence[str]) -> nn.Module:
        """Return a new head of `HEADS`.

        Raises:
            ConfigError: If it is not supported.
        """
        raise NotImplementedError

    def precompute(self, features: Sequence[Any]) -> list[Any]:
        """Return features of a task whose encodings contain frozen features instead of ids."""
        raise NotImplementedError
