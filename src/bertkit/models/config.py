"""Settings of encoders and decoders.

`EncoderConfig` has the settings that all architectures share, `TransformerConfig` those of a
Transformer. Settings of one part are a group: positions, norm, attention, feedforward, head.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from bertkit.config import Positive, Settings, Share, at
from bertkit.errors import ConfigError

Base = Annotated[float, Meta(gt=1.0)]
Count = Annotated[int, Meta(ge=1, lt=2**31)]
Buckets = Annotated[int, Meta(ge=4, lt=2**31, multiple_of=4)]
Tokens = Annotated[int, Meta(ge=0, lt=2**31)]
NamedRate = Share | Literal["dropout", "head.dropout"]
"""A dropout probability, or the setting that contains it."""


class LearnedPositions(Settings, frozen=True, tag_field="kind", tag="learned"):
    """A learned vector for each of `length` positions (BERT)."""


class SinusoidalPositions(Settings, frozen=True, tag_field="kind", tag="sinusoidal"):
    """Sines and cosines of each position, which nothing learns. Vaswani et al. 2017, 3.5."""


class RotaryPositions(Settings, frozen=True, tag_field="kind", tag="rotary"):
    """Queries and keys are rotated by their positions (ModernBERT). Su et al. 2021, 3.2."""

    base: Base = 10_000.0
    """Base of the wavelengths of rotary positions."""
    factor: Positive = 1.0
    """Positions are divided by it, so that longer texts have angles that were learned (GTE)."""


class RelativePositions(Settings, frozen=True, tag_field="kind", tag="relative"):
    """A learned bias of attention's scores for each head and distance. Raffel et al. 2020, 2.1."""

    buckets: Buckets = 32
    """Distances are told apart in so many buckets."""
    learned: bool = False
    """Add learned vectors of absolute positions as well (MPNet)."""


class DisentangledPositions(Settings, frozen=True, tag_field="kind", tag="disentangled"):
    """A learned vector for each distance, which meets queries and keys (DeBERTa). He et al. 2021,
    3.1.
    """

    side_buckets: Buckets = 256
    """Distances ahead are told apart in so many buckets, and those behind in as many."""
    farthest: Count | None = None
    """Distances from here on share a bucket; `max_positions` by default."""

    def __post_init__(self) -> None:
        if self.farthest is not None and self.farthest <= self.side_buckets // 2 + 1:
            raise ValueError(
                f"farthest = {self.farthest}: half of the {self.side_buckets} buckets of a side "
                "have one distance each already; choose more, or fewer side_buckets"
            )


class NoPositions(Settings, frozen=True, tag_field="kind", tag="none"):
    """The order of tokens is unknown to the model."""


Positions = (
    LearnedPositions
    | SinusoidalPositions
    | RotaryPositions
    | RelativePositions
    | DisentangledPositions
    | NoPositions
)


class NormSettings(Settings, frozen=True):
    """How states are normalized, and where."""

    kind: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm (T5), which has no bias."""
    place: Literal["post", "pre"] = "post"
    """After residual sums (BERT), or before each sublayer (GPT-2, ModernBERT)."""
    eps: Positive = 1e-12
    """What is added to the variance."""
    bias: bool = True
    """Whether norms have biases."""
    embedding: bool = True
    """Whether the embedding is normalized; not in GPT-2."""
    first: bool = True
    """Whether the attention of the first layer has a norm; not in ModernBERT."""
    final: bool = False
    """Whether the last states are normalized, with a norm of their own (GPT-2, ModernBERT)."""

    def __post_init__(self) -> None:
        if self.kind == "rms" and self.bias:
            raise ValueError("bias: RMSNorm has none; set norm.bias = false")
        if self.place == "post" and not self.first:
            raise ValueError("first: only norms before sublayers can be left out; set it to true")


class WindowSettings(Settings, frozen=True):
    """Local attention in some of the layers."""

    tokens: Tokens
    """Number of tokens on each side that local layers attend to."""
    global_every: Count = 3
    """Layers 0, n, 2n, … use global attention, the others are local."""
    base: Base | None = None
    """Base of rotary positions in local layers; by default that of the others."""


class AttentionSettings(Settings, frozen=True):
    """What attention is beside its heads."""

    kv_heads: Count | None = None
    """Heads of keys and values, each shared by as many queries' heads; `heads` by default."""
    width: Count | None = None
    """Width of a head, K; hidden / heads by default."""
    bias: bool = True
    """Whether its linear layers have biases."""
    scaled: bool = True
    """Whether scores are divided by √K; not in T5."""
    window: WindowSettings | None = None
    """By default every layer attends to the whole sequence."""
    causal: bool = False
    """Whether a token attends to itself and earlier ones alone (GPT, decoders)."""
    cross: bool = False
    """Whether each layer also attends to the states of an encoder (decoders)."""
    output_dropout: Share | None = None
    """Before its residual sum; `dropout` by default, 0 in DistilBERT."""


class FeedForwardSettings(Settings, frozen=True):
    """What the feed-forward network is beside its width."""

    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"] = "gelu"
    """`gelu` is the exact form with erf, BERT's."""
    gated: bool = False
    """Use a gated feed-forward network (GLU): activation(x W₁) · x W₂."""
    bias: bool = True
    """Whether its linear layers have biases."""
    up_bias: bool | None = None
    """Whether the first of them has one; `bias` by default, false in GTE."""
    dropout: NamedRate = 0.0
    """Behind its activation (BART); `"dropout"` in GTE."""


class ConvolutionSettings(Settings, frozen=True):
    """A convolution of the embedding, which is added to the states of the first layer."""

    tokens: Count = 3
    """Tokens that it reads at a time, an odd number."""
    activation: Literal["tanh", "gelu", "relu", "silu"] = "tanh"
    """`gelu` in DeBERTa v2 xlarge."""

    def __post_init__(self) -> None:
        if self.tokens % 2 == 0:
            raise ValueError(f"tokens = {self.tokens}: has no middle; choose an odd number")


class HeadSettings(Settings, frozen=True):
    """What a family's heads are; the encoder reads none of it."""

    activation: Literal["tanh", "relu", "gelu"] = "tanh"
    """Activation of the pooler."""
    mlm_activation: Literal["gelu"] | None = None
    """Activation of the MLM head. Default: the activation of the feed-forward networks; `"gelu"` in
    RoBERTa, MPNet, and ELECTRA."""
    pooling: Literal["cls", "mean"] = "cls"
    """Which state the pooler reads: that of [CLS], or the mean of all."""
    norm: bool = False
    """Whether every head begins with a dense layer, the pooler's activation and a norm."""
    bias: bool = True
    """Whether the dense layers of heads have biases."""
    dropout: Share | None = None
    """Before the last layer of a classifier; `dropout` of the model by default."""
    dense_dropout: NamedRate = 0.0
    """Before a classifier's dense layer."""
    tag_dropout: NamedRate = "head.dropout"
    """Before the last layer of a tagger, with a CRF or without."""
    choose_dropout: NamedRate = "head.dropout"
    """Before the last layer of the head that chooses."""
    answer_dropout: NamedRate = 0.0
    """Before the last layer of the head that finds answers."""
    sop_dropout: NamedRate = 0.0
    """Before the last layer of sentence-order prediction."""
    lm_bias: bool = False
    """Whether logits of next words have a bias (Marian, BART)."""
    lm_tied: bool = True
    """Whether next words are found by the token embedding itself; many a Llama has a matrix of its
    own."""
    lm_scaled: bool = False
    """Whether to divide states by √D before the output matrix (`true` in T5, unless `lm_tied` is
    `false`, as in T5 v1.1)."""


class EncoderConfig(Settings, frozen=True):
    """Settings that all encoders and decoders have. Each architecture adds its own in a subclass.

    Properties describe the architecture, so that other modules do not depend on its class.
    """

    encoder_class: ClassVar[str]
    """Class of the encoder, as `module:attribute`."""
    decoder_class: ClassVar[str]
    """Class of the decoder, as `module:attribute`."""
    is_sequential: ClassVar[bool] = False
    """Whether a layer computes the state of each token from the state of the token before it."""

    vocab: Count
    """Rows of the token embedding, V."""
    hidden: Count = 768
    """Width of the states, D."""
    layers: Annotated[int, Meta(ge=1, le=1000)] = 12
    max_positions: Count = 512
    """Maximum sequence length in tokens, including special tokens."""
    pad_id: Annotated[int, Meta(ge=0)] = 0
    """Id of the padding token. Packed batches contain none; RoBERTa checkpoints start positions
    at pad + 1; MPNet requires 1."""
    dropout: Share = 0.1
    """Dropout of embeddings and before residual sums."""
    head: HeadSettings = HeadSettings()

    def rate(self, path: str) -> float:
        """Return a dropout probability by the path of its setting, which may name another one."""
        value = at(self, path)
        if value is None:
            return self.dropout
        return self.rate(value) if isinstance(value, str) else float(value)

    def check_decoder(self, decoder: EncoderConfig) -> None:
        """Check that a decoder of the same architecture fits the encoder.

        Raises:
            ConfigError: If it does not.
        """
        if decoder.hidden != self.hidden:
            raise ConfigError(
                f"decoder.hidden = {decoder.hidden}: the encoder has {self.hidden}; use one value"
            )

    @property
    def width(self) -> int:
        """Width of the token embedding, E."""
        return self.hidden

    @property
    def heads(self) -> int:
        """Number of attention heads per layer, H."""
        return 1

    @property
    def token_types(self) -> int:
        """Number of segment embeddings."""
        return 0

    @property
    def learned_positions(self) -> int:
        """Number of position embeddings."""
        return 0

    @property
    def depths(self) -> tuple[int, ...]:
        """Index of the weights that each layer uses."""
        return tuple(range(self.layers))

    @property
    def is_causal(self) -> bool:
        """Whether a state depends on its own token and earlier tokens only."""
        return False

    @property
    def attends_to_source(self) -> bool:
        """Whether a decoder with these settings attends to the states of the encoder."""
        return False

    @property
    def embedding_std(self) -> float | None:
        """Standard deviation of a new token embedding; None: as in other matrices."""
        return None


class TransformerConfig(EncoderConfig, frozen=True):
    """Settings of a Transformer."""

    encoder_class: ClassVar[str] = "bertkit.models.transformer:Transformer"
    decoder_class: ClassVar[str] = encoder_class

    embedding: Count | None = None
    """Width of the token embedding, E; a dense layer projects it to `hidden`, the default."""
    scale_embedding: bool = False
    """Multiply the token embedding by √E (Vaswani et al. 2017, section 3.4)."""
    layer_sharing: tuple[int, ...] | None = None
    """Which set of weights each layer uses, numbered from 0; ALBERT shares one among all twelve.
    By default each layer has its own."""
    heads: Count = 12
    """Attention heads a layer, H."""
    intermediate: Count = 3072
    """Width inside the feed-forward network."""
    token_types: Annotated[int, Meta(ge=0)] = 2
    """Rows of the segment embedding: 2 for sentences A and B; 0 for none."""
    attention_dropout: Share = 0.1
    """Dropout of attention weights."""
    positions: Positions = LearnedPositions()
    """How a model knows the order of its tokens."""
    norm: NormSettings = NormSettings()
    attention: AttentionSettings = AttentionSettings()
    feedforward: FeedForwardSettings = FeedForwardSettings()
    convolution: ConvolutionSettings | None = None
    """A convolution beside the first layer (DeBERTa v2 xlarge); by default none."""

    def __post_init__(self) -> None:
        if self.attention.width is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden = {self.hidden} cannot be divided among heads = {self.heads}; "
                f"choose hidden as a multiple of heads"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads = {self.heads} cannot share attention.kv_heads = {self.kv_heads} evenly; "
                "choose a divisor of heads"
            )
        rotary = isinstance(self.positions, RotaryPositions)
        if rotary and self.head_width % 2:
            raise ValueError(
                f"rotary positions rotate pairs of numbers, and heads are {self.head_width} wide; "
                "choose an even width, hidden / heads"
            )
        window = self.attention.window
        if window is not None and window.base is not None and not rotary:
            raise ValueError(
                "attention.window.base belongs to rotary positions, and positions are others; "
                "leave it out"
            )
        if len(self.depths) != self.layers:
            raise ValueError(
                f"layer_sharing = {list(self.depths)} names weights for {len(self.depths)} layers, "
                f"and layers = {self.layers}"
            )
        if set(self.depths) != set(range(max(self.depths) + 1)):
            raise ValueError(
                f"layer_sharing = {list(self.depths)}: number the weights from 0, without gaps"
            )

    def check_decoder(self, decoder: EncoderConfig) -> None:
        super().check_decoder(decoder)
        if not decoder.attends_to_source:
            raise ConfigError("decoder.attention.cross: a decoder attends to its encoder; set it")
        if self.attention.cross:
            raise ConfigError("attention.cross: an encoder has no source to attend to; remove it")

    @property
    def width(self) -> int:
        return self.hidden if self.embedding is None else self.embedding

    @property
    def head_width(self) -> int:
        """K, of an attention head."""
        return self.attention.width or self.hidden // self.heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.attention.kv_heads or self.heads

    @property
    def learned_positions(self) -> int:
        match self.positions:
            case LearnedPositions() | RelativePositions(learned=True):
                return self.max_positions
        return 0

    @property
    def depths(self) -> tuple[int, ...]:
        return super().depths if self.layer_sharing is None else self.layer_sharing

    @property
    def is_causal(self) -> bool:
        return self.attention.causal

    @property
    def attends_to_source(self) -> bool:
        return self.attention.cross

    @property
    def embedding_std(self) -> float | None:
        # T5 divides states by √D before the token embedding: the logits of a smaller one would be
        # nearly equal for many steps. Source: google-research/text-to-text-transfer-transformer
        return 1.0 if self.head.lm_scaled else None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The attention window of each layer, in tokens on each side; None is global attention."""
        window = self.attention.window
        if window is None:
            return (None,) * self.layers
        return tuple(window.tokens if n % window.global_every else None for n in range(self.layers))
