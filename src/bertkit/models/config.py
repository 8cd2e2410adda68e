"""Settings of encoders and decoders.

`EncoderConfig` contains the settings that all architectures share. `TransformerConfig` adds the
settings of a Transformer. Settings of the same part of a model form a group: positions, norm,
attention, feedforward, and head.
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
"""Dropout probability, or the name of another setting whose value is used."""


class LearnedPositions(Settings, frozen=True, tag_field="kind", tag="learned"):
    """Learned position embedding with `max_positions` positions (BERT)."""


class SinusoidalPositions(Settings, frozen=True, tag_field="kind", tag="sinusoidal"):
    """Position encoding by sines and cosines, without training. Vaswani et al. 2017, 3.5."""


class RotaryPositions(Settings, frozen=True, tag_field="kind", tag="rotary"):
    """Rotary position embedding (RoPE) of queries and keys (ModernBERT). Su et al. 2021, 3.2."""

    base: Base = 10_000.0
    """RoPE base."""
    factor: Positive = 1.0
    """RoPE scaling: positions are divided by this factor, so that the rotation angles of longer
    texts are in the range seen in training (GTE).
    """


class RelativePositions(Settings, frozen=True, tag_field="kind", tag="relative"):
    """Learned bias for each head and distance, added to the attention scores (T5, MPNet).

    Source: Raffel et al. 2020, 2.1.
    """

    buckets: Buckets = 32
    """Number of distance buckets."""
    learned: bool = False
    """Whether to also use a learned embedding of absolute positions (MPNet)."""


class DisentangledPositions(Settings, frozen=True, tag_field="kind", tag="disentangled"):
    """Learned distance vectors, which affect attention scores (DeBERTa). He et al. 2021, 3.1."""

    side_buckets: Buckets = 256
    """Number of distance buckets in each direction."""
    farthest: Count | None = None
    """All distances from this one on share a bucket. Default: `max_positions`."""

    def __post_init__(self) -> None:
        if self.farthest is not None and self.farthest <= self.side_buckets // 2 + 1:
            raise ValueError(
                f"farthest must be greater than {self.side_buckets // 2 + 1} (side_buckets / 2 + "
                f"1), got {self.farthest}; increase farthest or reduce side_buckets"
            )


class NoPositions(Settings, frozen=True, tag_field="kind", tag="none"):
    """No position encoding."""


Positions = (
    LearnedPositions
    | SinusoidalPositions
    | RotaryPositions
    | RelativePositions
    | DisentangledPositions
    | NoPositions
)


class NormSettings(Settings, frozen=True):
    """Settings of the normalization layers (norms)."""

    kind: Literal["layer", "rms"] = "layer"
    """Type of the norms: `layer` for LayerNorm, or `rms` for RMSNorm, which has no bias (T5)."""
    place: Literal["post", "pre"] = "post"
    """Place of the norms: `post` for after each residual connection (BERT), or `pre` for before
    each sublayer (GPT-2, ModernBERT).
    """
    eps: Positive = 1e-12
    """Value that is added to the variance, to avoid a division by zero."""
    bias: bool = True
    """Whether norms have a bias."""
    embedding: bool = True
    """Whether the output of the embedding layer is normalized; `false` in GPT-2."""
    first: bool = True
    """Whether the attention of the first layer has a norm; `false` in ModernBERT."""
    final: bool = False
    """Whether a final norm follows the last layer (GPT-2, ModernBERT)."""

    def __post_init__(self) -> None:
        if self.kind == "rms" and self.bias:
            raise ValueError("bias is not supported by RMSNorm; set norm.bias = false")
        if self.place == "post" and not self.first:
            raise ValueError('first = false requires place = "pre"; set first = true')


class WindowSettings(Settings, frozen=True):
    """Settings of local attention, which some of the layers use."""

    tokens: Tokens
    """Number of tokens on each side that a token attends to in layers with local attention."""
    global_every: Count = 3
    """Distance n between layers with global attention. Layers 0, n, 2n, … use global attention, and
    all other layers use local attention.
    """
    base: Base | None = None
    """RoPE base in layers with local attention. Default: the base of the other layers."""


class AttentionSettings(Settings, frozen=True):
    """Settings of attention, except the number of heads."""

    kv_heads: Count | None = None
    """Number of key and value heads. Each is shared by heads / kv_heads query heads (grouped-query
    attention). Default: `heads`.
    """
    width: Count | None = None
    """Head dimension, K. Default: hidden / heads."""
    bias: bool = True
    """Whether the linear layers of attention have biases."""
    scaled: bool = True
    """Whether to divide attention scores by √K; `false` in T5."""
    window: WindowSettings | None = None
    """Local attention in some layers. By default, every layer attends to the complete sequence."""
    causal: bool = False
    """Whether tokens attend only to themselves and earlier tokens (GPT, decoders)."""
    cross: bool = False
    """Whether each layer also attends to the hidden states of an encoder (cross-attention), as in
    decoders.
    """
    output_dropout: Share | None = None
    """Dropout probability of the attention output, before the residual connection. Default:
    `dropout`; 0 in DistilBERT.
    """


class FeedForwardSettings(Settings, frozen=True):
    """Settings of the feed-forward network, except its size."""

    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"] = "gelu"
    """Activation function. `gelu` is the exact GELU, which uses erf (BERT). `relu2` is the square
    of ReLU.
    """
    gated: bool = False
    """Whether to use a gated feed-forward network (GLU): activation(x W₁) · x W₂."""
    bias: bool = True
    """Whether the linear layers have biases."""
    up_bias: bool | None = None
    """Whether the first linear layer has a bias. Default: `bias`; `false` in GTE."""
    dropout: NamedRate = 0.0
    """Dropout probability after the activation (BART). `"dropout"` means the value of the setting
    `dropout` (GTE).
    """


class ConvolutionSettings(Settings, frozen=True):
    """Settings of a convolution over the embeddings, which is added to the first layer's output."""

    tokens: Count = 3
    """Kernel size in tokens. It must be odd."""
    activation: Literal["tanh", "gelu", "relu", "silu"] = "tanh"
    """Activation of the convolution; `gelu` in DeBERTa v2 xlarge."""

    def __post_init__(self) -> None:
        if self.tokens % 2 == 0:
            raise ValueError(f"tokens must be odd, got {self.tokens}")


class HeadSettings(Settings, frozen=True):
    """Settings of heads, which do not affect the encoder."""

    activation: Literal["tanh", "relu", "gelu"] = "tanh"
    """Activation of the pooler."""
    mlm_activation: Literal["gelu"] | None = None
    """Activation of the MLM head. Default: the activation of the feed-forward networks; `"gelu"` in
    RoBERTa, MPNet, and ELECTRA."""
    pooling: Literal["cls", "mean", "last"] = "cls"
    """Input of the pooler: the state of [CLS], the mean of all states, or the state of the last
    token (BART)."""
    norm: bool = False
    """Whether every head starts with a dense layer, the pooler's activation, and a norm
    (ModernBERT).
    """
    bias: bool = True
    """Whether the dense layers of heads have biases."""
    dropout: Share | None = None
    """Dropout probability before the last layer of a classifier. Default: the model's `dropout`."""
    dense_dropout: NamedRate = 0.0
    """Dropout probability before the dense layer of a classifier."""
    tag_dropout: NamedRate = "head.dropout"
    """Dropout probability before the last layer of the token classification head."""
    choose_dropout: NamedRate = "head.dropout"
    """Dropout probability before the last layer of the multiple-choice head."""
    answer_dropout: NamedRate = 0.0
    """Dropout probability before the last layer of the question answering head."""
    sop_dropout: NamedRate = 0.0
    """Dropout probability before the last layer of the sentence order prediction head."""
    lm_bias: bool = False
    """Whether the LM head has a bias (Marian, BART)."""
    lm_tied: bool = True
    """Whether the LM head uses the token embedding as its output matrix; `false` in many Llama
    models.
    """
    lm_scaled: bool = False
    """Whether the LM head divides hidden states by √D before it multiplies them by the output
    matrix (`true` in T5, unless `lm_tied` is `false`, as in T5 v1.1).
    """


class EncoderConfig(Settings, frozen=True):
    """Settings that all encoders and decoders share. Architectures add settings in subclasses.

    Other modules read the properties of this class, so that they do not depend on an architecture.
    """

    encoder_class: ClassVar[str]
    """Import path of the encoder's class, as `module:attribute`."""
    decoder_class: ClassVar[str]
    """Import path of the decoder's class, as `module:attribute`."""
    is_sequential: ClassVar[bool] = False
    """Whether layers are recurrent: a token's state depends on the state of the previous token."""

    vocab: Count
    """Vocabulary size V: the number of token embeddings."""
    hidden: Count = 768
    """Hidden size, D."""
    layers: Annotated[int, Meta(ge=1, le=1000)] = 12
    """Number of layers."""
    max_positions: Count = 512
    """Maximum sequence length in tokens, including special tokens."""
    pad_id: Annotated[int, Meta(ge=0)] = 0
    """Id of the padding token. Packed batches contain no padding, but checkpoints depend on the id:
    RoBERTa numbers positions from `pad_id` + 1, and MPNet requires the id 1.
    """
    dropout: Share = 0.1
    """Dropout probability of embeddings, and of sublayer outputs before residual connections."""
    head: HeadSettings = HeadSettings()

    def rate(self, path: str) -> float:
        """Return the dropout probability of the setting with this path.

        If the value is the name of another setting, return the probability of that setting.
        """
        value = at(self, path)
        if value is None:
            return self.dropout
        return self.rate(value) if isinstance(value, str) else float(value)

    def check_decoder(self, decoder: EncoderConfig) -> None:
        """Check that a decoder of the same architecture can be combined with this encoder.

        Args:
            decoder: Settings of the decoder.

        Raises:
            ConfigError: If the settings of the decoder are not compatible with the encoder.
        """
        if decoder.hidden != self.hidden:
            raise ConfigError(
                f"decoder.hidden must be {self.hidden}, as in the encoder, got {decoder.hidden}"
            )

    @property
    def width(self) -> int:
        """Size of the token embedding, E."""
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
        """Number of learned position embeddings."""
        return 0

    @property
    def depths(self) -> tuple[int, ...]:
        """For each layer, the index of the weights that it uses."""
        return tuple(range(self.layers))

    @property
    def is_causal(self) -> bool:
        """Whether the hidden state of a token depends only on this token and on earlier tokens."""
        return False

    @property
    def attends_to_source(self) -> bool:
        """Whether a decoder with these settings attends to the states of the encoder."""
        return False

    @property
    def embedding_std(self) -> float | None:
        """Standard deviation of a new token embedding, or None if it is as for other matrices."""
        return None


class TransformerConfig(EncoderConfig, frozen=True):
    """Settings of a Transformer."""

    encoder_class: ClassVar[str] = "bertkit.models.transformer:Transformer"
    decoder_class: ClassVar[str] = encoder_class

    embedding: Count | None = None
    """Size of the token embedding, E. Default: `hidden`. If it differs from `hidden`, a dense layer
    projects embeddings to the hidden size (ALBERT, ELECTRA).
    """
    scale_embedding: bool = False
    """Whether to multiply the token embedding by √E (Vaswani et al. 2017, section 3.4)."""
    layer_sharing: tuple[int, ...] | None = None
    """For each layer, the index of the weights that it uses, starting at 0; all 0 in ALBERT. By
    default, each layer has its own weights.
    """
    heads: Count = 12
    """Number of attention heads per layer, H."""
    intermediate: Count = 3072
    """Intermediate size of the feed-forward networks."""
    token_types: Annotated[int, Meta(ge=0)] = 2
    """Number of segment embeddings: 2 for sentences A and B, or 0 for none."""
    attention_dropout: Share = 0.1
    """Dropout probability of attention weights."""
    positions: Positions = LearnedPositions()
    """Type of the position encoding, and its settings."""
    norm: NormSettings = NormSettings()
    """Normalization layers after the embedding and in the layers."""
    attention: AttentionSettings = AttentionSettings()
    """Settings of attention."""
    feedforward: FeedForwardSettings = FeedForwardSettings()
    """Settings of the feed-forward networks."""
    convolution: ConvolutionSettings | None = None
    """Convolution over the embeddings, which is added to the output of the first layer (DeBERTa v2
    xlarge). By default, there is none.
    """

    def __post_init__(self) -> None:
        if self.attention.width is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of heads ({self.heads}), got {self.hidden}"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"attention.kv_heads must divide heads ({self.heads}), got {self.kv_heads}"
            )
        rotary = isinstance(self.positions, RotaryPositions)
        if rotary and self.head_width % 2:
            raise ValueError(
                "rotary positions require an even head dimension (hidden / heads), "
                f"got {self.head_width}"
            )
        window = self.attention.window
        if window is not None and window.base is not None and not rotary:
            raise ValueError("attention.window.base requires rotary positions; remove the base")
        if len(self.depths) != self.layers:
            raise ValueError(
                f"layer_sharing must have one index per layer ({self.layers}), "
                f"got {list(self.depths)}"
            )
        if set(self.depths) != set(range(max(self.depths) + 1)):
            raise ValueError(
                f"layer_sharing must number weights from 0 without gaps, got {list(self.depths)}"
            )

    def check_decoder(self, decoder: EncoderConfig) -> None:
        super().check_decoder(decoder)
        if not decoder.attends_to_source:
            raise ConfigError("decoder.attention.cross must be true; set it to true")
        if self.attention.cross:
            raise ConfigError("attention.cross is not supported in an encoder; set it to false")

    @property
    def width(self) -> int:
        return self.hidden if self.embedding is None else self.embedding

    @property
    def head_width(self) -> int:
        """Head dimension, K."""
        return self.attention.width or self.hidden // self.heads

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
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
        # T5 divides hidden states by √D before the tied LM head. If the initial embedding were
        # smaller, all logits would remain nearly equal for many training steps.
        # Source: google-research/text-to-text-transfer-transformer.
        return 1.0 if self.head.lm_scaled else None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Attention window of each layer: the number of tokens on each side, or None if global."""
        window = self.attention.window
        if window is None:
            return (None,) * self.layers
        return tuple(window.tokens if n % window.global_every else None for n in range(self.layers))
