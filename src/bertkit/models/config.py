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

LATER = frozenset({"relative"})
"""Settings that fingerprints leave out where they have their default, for the same reason."""


class TransformerConfig(Settings, frozen=True):
    """Every variant of the encoder is a value of this class."""

    vocab: Count
    """Rows of the token embedding, V."""
    hidden: Count = 768
    """Width of the states, D."""
    embedding: Count | None = None
    """Width of the token embedding, E; a dense layer projects it to `hidden`, the default."""
    layers: Annotated[int, Meta(ge=1, le=1000)] = 12
    order: tuple[int, ...] | None = None
    """Which set of weights each layer uses, numbered from 0; ALBERT shares one among all twelve.
    By default each layer has its own."""
    heads: Count = 12
    """Attention heads a layer, H; the width of one is hidden / heads."""
    intermediate: Count = 3072
    """Width inside the feed-forward network."""
    length: Count = 512
    """The longest sequence in tokens, with its special tokens; as many positions are learned."""
    types: Annotated[int, Meta(ge=0)] = 2
    """Rows of the segment embedding: 2 for sentences A and B; 0 for none."""
    pad: Annotated[int, Meta(ge=0)] = 0
    """Id of the padding token. Packed batches contain none; RoBERTa checkpoints start positions
    at pad + 1."""
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    """`gelu` is the exact form with erf, BERT's."""
    gated: bool = False
    """Use a gated feed-forward network (GLU): activation(x W₁) · x W₂."""
    norm: Literal["post", "pre"] = "post"
    """Where LayerNorm stands: after residual sums (BERT) or before each sublayer (ModernBERT)."""
    norm_eps: Annotated[float, Meta(gt=0.0)] = 1e-12
    bias: bool = True
    """Whether linear layers and LayerNorms have biases."""
    rotary: Annotated[float, Meta(gt=1.0)] | None = None
    """Base of rotary position embeddings, which replace learned positions."""
    relative: Annotated[int, Meta(ge=4, multiple_of=4)] | None = None
    """Buckets of a learned bias for relative positions, beside learned positions (MPNet: 32)."""
    window: Count | None = None
    """Local layers attend to so many tokens on each side. By default no layer is local."""
    window_rotary: Annotated[float, Meta(gt=1.0)] = 10_000.0
    """`rotary` of local layers."""
    global_every: Count = 3
    """With `window`: layers 0, n, 2n, … use global attention, the others are local."""
    dropout: Rate = 0.1
    """On embeddings and before residual sums."""
    attention_dropout: Rate = 0.1
    """On attention weights."""
    attention_output_dropout: OwnRate = "dropout"
    """Before the residual sum of attention."""
    pooler: Literal["tanh", "relu", "gelu"] = "tanh"
    """Activation of the pooler."""
    pooling: Literal["cls", "mean"] = "cls"
    """Which state the pooler reads: that of [CLS], or the mean of all."""
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
        """The attention window of each layer, in tokens on each side; None is global attention."""
        return tuple(
            self.window if layer % self.global_every else None for layer in range(self.layers)
        )
