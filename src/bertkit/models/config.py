"""The shape of a Transformer, as values."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from bertkit.config import Count, Rate, Settings


class TransformerConfig(Settings, frozen=True):
    """Every variant of the encoder is a value of this class."""

    vocab: Count
    """Rows of the token embedding, V."""
    hidden: Count = 768
    """Width of the states, D."""
    layers: Count = 12
    heads: Count = 12
    """Attention heads a layer, H; the width of one is hidden / heads."""
    intermediate: Count = 3072
    """Width inside the feed-forward network."""
    length: Count = 512
    """Learned positions: the longest sequence in tokens, with its special tokens."""
    types: Count = 2
    """Segments: sentence A and sentence B."""
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    """`gelu` is the exact form with erf, BERT's."""
    norm_eps: Annotated[float, Meta(gt=0.0)] = 1e-12
    dropout: Rate = 0.1
    """On embeddings and before each residual sum."""
    attention_dropout: Rate = 0.1
    """On attention weights."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden = {self.hidden} cannot be divided among heads = {self.heads}; "
                f"choose hidden as a multiple of heads"
            )
