"""Interface of encoders and decoders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bertkit.batch import Batch
from bertkit.models.config import EncoderConfig
from bertkit.models.embedding import TokenEmbedding


class Encoder(nn.Module):
    """Base class of encoders and decoders, which compute hidden states of packed tokens.

    A decoder receives the output of `memory` as an argument of the same name.

    Shapes:
        A batch of N tokens -> (N, D).
    """

    config: EncoderConfig
    embedding: TokenEmbedding
    learning_rate: float | None = None
    """Default peak learning rate of fine-tuning. None: it depends on the hidden size."""

    def memory(self, source: Batch) -> Any:
        """Return the input for a decoder of the same architecture. Default: the hidden states."""
        return self(source)

    def precompute(self, features: Sequence[Any]) -> list[Any]:
        """Return features of a task with the encodings for training. Default: unchanged.

        Encoders of frozen features replace token ids by the features.
        """
        return list(features)

    def save_input(self, folder: Path, tokenizer: Any) -> None:
        """Save what converts texts to the input of the encoder. Default: the tokenizer."""
        tokenizer.save(folder, segments=self.config.token_types > 1)


class FeatureEncoder(Encoder):
    """Base class of encoders with frozen input features, which extensions define."""

    learning_rate = 3e-3
    """Default peak learning rate. It is high because the layers are newly initialized."""
    embedding: Any
    """Module that combines the features; they have no token embedding."""
    features: Any
    """The frozen features, which copies of the encoder share."""

    def build_head(self, name: str, labels: Sequence[str]) -> nn.Module:
        """Return a new head of `HEADS`.

        Raises:
            ConfigError: If the head is not supported.
        """
        raise NotImplementedError
