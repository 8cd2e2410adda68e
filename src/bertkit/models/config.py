"""The shape of a Transformer, as values."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from bertkit.config import Count, Rate, Settings

OwnRate = Rate | Literal["dropout", "head_dropout"]
"""A rate of its own, or that of the setting it names."""

OF_TRAINING = frozenset(
    {"attention_output_dropout", "dense_dropout"}
    | {"tag_dropout", "choose_dropout", "answer_dropout", "sop_dropout"}
)
"""Settings that decide no vector, and which fingerprints leave out: stores that were made before
there were any stay valid."""


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
    """The longest sequence in tokens, with its special tokens; as many positions are learned."""
    types: Annotated[int, Meta(ge=0)] = 2
    """Segments: sentence A and sentence B. With 1 or 0 the model knows none."""
    pad: Annotated[int, Meta(ge=0)] = 0
    """Id of the padding piece, which no packed batch has; RoBERTa's folders count positions on
    from it."""
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    """`gelu` is the exact form with erf, BERT's."""
    gated: bool = False
    """Whether the bent states of the feed-forward network are multiplied by as many unbent ones."""
    norm: Literal["post", "pre"] = "post"
    """Whether a layer normalizes what it adds up, as BERT, or what it reads."""
    norm_eps: Annotated[float, Meta(gt=0.0)] = 1e-12
    bias: bool = True
    """Whether layers and norms add a vector of their own."""
    rotary: Annotated[float, Meta(gt=1.0)] | None = None
    """The base of the angles that queries and keys are turned by, without learned positions."""
    window: Count | None = None
    """How far a token of a local layer sees, in tokens to each side; by default none is local."""
    window_rotary: Annotated[float, Meta(gt=1.0)] = 10_000.0
    """As `rotary`, of local layers."""
    global_every: Count = 3
    """Beside a window: the first layer and every such one after it see the whole sequence."""
    dropout: Rate = 0.1
    """On embeddings and before residual sums."""
    attention_dropout: Rate = 0.1
    """On attention weights."""
    attention_output_dropout: OwnRate = "dropout"
    """Before the residual sum of attention."""
    pooler: Literal["tanh", "relu", "gelu"] = "tanh"
    """What bends the pooled [CLS]."""
    pooling: Literal["cls", "mean"] = "cls"
    """What is pooled: the first state, or the mean of all."""
    head_norm: bool = False
    """Whether every head begins with a dense layer, the pooler's activation and a norm."""
    head_dropout: Rate | None = None
    """Before the last layer of a classifier; `dropout` by default."""
    dense_dropout: OwnRate = 0.0
    """Before a classifier's dense layer."""
    tag_dropout: OwnRate = "head_dropout"
    """Before the last layer of a tagger, with a CRF or without."""
    choose_dropout: OwnRate = "head_dropout"
    """Before the last layer of the head that chooses."""
    answer_dropout: OwnRate = 0.0
    """Before the last layer of the head that finds answers."""
    sop_dropout: OwnRate = 0.0
    """Before the last layer of sentence-order prediction."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden = {self.hidden} cannot be divided among heads = {self.heads}; "
                f"choose hidden as a multiple of heads"
            )
        if self.rotary is not None and self.hidden // self.heads % 2:
            raise ValueError(
                f"rotary turns pairs of numbers, and heads are {self.hidden // self.heads} wide; "
                "choose an even width, hidden / heads"
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

    def rate(self, name: str) -> float:
        """A dropout by the name of its setting, which may name another."""
        value = getattr(self, name)
        if value is None:
            value = "dropout"
        return self.rate(value) if isinstance(value, str) else float(value)

    @property
    def width(self) -> int:
        """E, of the embedding."""
        return self.hidden if self.embedding is None else self.embedding

    @property
    def depths(self) -> tuple[int, ...]:
        """The number of each layer's weights."""
        return tuple(range(self.layers)) if self.order is None else self.order

    @property
    def windows(self) -> tuple[int | None, ...]:
        """How far each layer sees, in tokens to each side; None is the whole sequence."""
        return tuple(
            self.window if layer % self.global_every else None for layer in range(self.layers)
        )
