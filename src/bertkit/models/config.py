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
    embedding: Count | None = None
    """Width of the embedding, E, widened to `hidden` by a dense layer; as wide by default."""
    layers: Annotated[int, Meta(ge=1, le=1000)] = 12
    order: tuple[int, ...] | None = None
    """Which weights each layer uses, by their number; ALBERT is twelve times 0. By default each
    has its own."""
    heads: Count = 12
    """Attention heads a layer, H; the width of one is hidden / heads."""
    intermediate: Count = 3072
    """Width inside the feed-forward network."""
    length: Count = 512
    """Learned positions: the longest sequence in tokens, with its special tokens."""
    types: Annotated[int, Meta(ge=0)] = 2
    """Segments: sentence A and sentence B. With 0 the model knows none."""
    pad: Annotated[int, Meta(ge=0)] = 0
    """Id of the padding piece, which no packed batch has; RoBERTa's folders count positions on
    from it."""
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    """`gelu` is the exact form with erf, BERT's."""
    norm_eps: Annotated[float, Meta(gt=0.0)] = 1e-12
    dropout: Rate = 0.1
    """On embeddings and before each residual sum."""
    attention_dropout: Rate = 0.1
    """On attention weights."""
    pooler: Literal["tanh", "relu", "gelu"] = "tanh"
    """What bends the pooled [CLS]."""
    head_dropout: Rate | None = None
    """Before the last layer of a task's head; `dropout` by default."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden = {self.hidden} cannot be divided among heads = {self.heads}; "
                f"choose hidden as a multiple of heads"
            )
        if len(self.depths) != self.layers:
            raise ValueError(
                f"order = {list(self.depths)} names weights for {len(self.depths)} layers, and "
                f"layers = {self.layers}"
            )
        if set(self.depths) != set(range(max(self.depths) + 1)):
            raise ValueError(
                f"order = {list(self.depths)}: number the weights from 0, without gaps"
            )

    @property
    def width(self) -> int:
        """E, of the embedding."""
        return self.hidden if self.embedding is None else self.embedding

    @property
    def depths(self) -> tuple[int, ...]:
        """The number of each layer's weights."""
        return tuple(range(self.layers)) if self.order is None else self.order
