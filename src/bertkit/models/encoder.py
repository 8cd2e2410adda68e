"""Base classes of encoders and decoders."""

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

    The output of the encoder's method `memory` is passed to the decoder as the argument `memory`.

    Shapes:
        A batch of N tokens -> (N, D).
    """

    config: EncoderConfig
    embedding: TokenEmbedding
    learning_rate: float | None = None
    """Default peak learning rate of fine-tuning. If None, it depends on the hidden size."""

    def memory(self, source: Batch) -> Any:
        """Compute the input for a decoder. By default, this is the hidden states."""
        return self(source)

    def precompute(self, features: Sequence[Any]) -> list[Any]:
        """Prepare the encoded examples of a task for training. By default, return them unchanged.

        Encoders with frozen input features replace the token ids by these input features.
        """
        return list(features)

    def save_input(self, folder: Path, tokenizer: Any) -> None:
        """Save the files that convert texts to the encoder's input, by default the tokenizer."""
        tokenizer.save(folder, segments=self.config.token_types > 1)


class FeatureEncoder(Encoder):
    """Base class of encoders with frozen input features. Extensions define subclasses."""

    learning_rate = 3e-3
    """Default peak learning rate. It is high because the layers are newly initialized."""
    embedding: Any
    """Module that combines the features, instead of a token embedding."""
    features: Any
    """The frozen features. Copies of the encoder share them."""

    def build_head(self, name: str, labels: Sequence[str]) -> nn.Module:
        """Build a new head with one of the names in `HEADS`.

        Raises:
            ConfigError: If the head is not supported.
        """
        raise NotImplementedError
