"""Settings of encoders and decoders.

`EncoderConfig` contains the settings that all architectures share, `TransformerConfig` the settings
of a Transformer. Settings of one part are a group: positions, norm, attention, feedforward, head.
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
    """Learned embedding of each of `max_positions` positions (BERT)."""


class SinusoidalPositions(Settings, frozen=True, tag_field="kind", tag="sinusoidal"):
    """Sines and cosines of each position, which are not trained. Vaswani et al. 2017, 3.5."""


class RotaryPositions(Settings, frozen=True, tag_field="kind", tag="rotary"):
    """Rotary positions (RoPE) of queries and keys (ModernBERT). Su et al. 2021, 3.2."""

    base: Base = 10_000.0
    """RoPE base."""
    factor: Positive = 1.0
    """RoPE scaling: positions are divided by this factor, so that longer texts use rotation angles
    seen in training (GTE).
    """


class RelativePositions(Settings, frozen=True, tag_field="kind", tag="relative"):
    """Learned bias of attention scores for each head and distance. Raffel et al. 2020, 2.1."""

    buckets: Buckets = 32
    """Number of distance buckets."""
    learned: bool = False
    """Whether to add learned absolute positions (MPNet)."""


class DisentangledPositions(Settings, frozen=True, tag_field="kind", tag="disentangled"):
    """Learned vectors of distances in attention scores (DeBERTa). He et al. 2021, 3.1."""

    side_buckets: Buckets = 256
    """Number of distance buckets in each direction."""
    farthest: Count | None = None
    """Distance from which all distances share a bucket. Default: `max_positions`."""

    def __post_init__(self) -> None:
        if self.farthest is not None and self.farthest <= self.side_buckets // 2 + 1:
            raise ValueError(
                f"farthest must be greater than {self.side_buckets // 2 + 1}, half of "
                f"side_buckets plus 1, got {self.farthest}; increase it or reduce side_buckets"
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
    """Type and place of norms."""

    kind: Literal["layer", "rms"] = "layer"
    """`layer` (LayerNorm), or `rms` (RMSNorm), which has no bias (T5)."""
    place: Literal["post", "pre"] = "post"
    """`post`, after residual connections (BERT); `pre`, before each sublayer (GPT-2, ModernBERT).
    """
    eps: Positive = 1e-12
    """Value added to the variance."""
    bias: bool = True
    """Whether to add biases to norms."""
    embedding: bool = True
    """Whether to normalize the embedding; `false` in GPT-2."""
    first: bool = True
    """Whether to add a norm to the attention of the first layer; `false` in ModernBERT."""
    final: bool = False
    """Whether to add a final norm after the last layer (GPT-2, ModernBERT)."""

    def __post_init__(self) -> None:
        if self.kind == "rms" and self.bias:
            raise ValueError("bias is not supported by RMSNorm; set norm.bias = false")
        if self.place == "post" and not self.first:
            raise ValueError('first = false requires place = "pre"; set it to true')


class WindowSettings(Settings, frozen=True):
    """Local attention in some of the layers."""

    tokens: Tokens
    """Number of tokens on each side that local layers attend to."""
    global_every: Count = 3
    """Layers 0, n, 2n, … use global attention, the others local attention."""
    base: Base | None = None
    """RoPE base in local layers. Default: the base of global layers."""


class AttentionSettings(Settings, frozen=True):
    """Settings of attention, besides the number of heads."""

    kv_heads: Count | None = None
    """Number of key and value heads, each shared by heads / kv_heads query heads (grouped-query
    attention). Default: `heads`.
    """
    width: Count | None = None
    """Head dimension, K. Default: hidden / heads."""
    bias: bool = True
    """Whether to add biases to the linear layers of attention."""
    scaled: bool = True
    """Whether to divide attention scores by √K; `false` in T5."""
    window: WindowSettings | None = None
    """Local attention in some layers. By default every layer attends to the complete sequence."""
    causal: bool = False
    """Whether tokens attend only to themselves and earlier tokens (GPT, decoders)."""
    cross: bool = False
    """Whether to add cross-attention to the states of an encoder to each layer (decoders)."""
    output_dropout: Share | None = None
    """Dropout of the attention output, before the residual connection. Default: `dropout`; 0 in
    DistilBERT.
    """


class FeedForwardSettings(Settings, frozen=True):
    """Settings of the feed-forward network, besides its size."""

    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"] = "gelu"
    """Activation. `gelu` is exact, with erf (BERT); `relu2` is the square of ReLU."""
    gated: bool = False
    """Whether to use a gated feed-forward network (GLU): activation(x W₁) · x W₂."""
    bias: bool = True
    """Whether to add biases to the linear layers."""
    up_bias: bool | None = None
    """Whether to add a bias to the first linear layer. Default: `bias`; `false` in GTE."""
    dropout: NamedRate = 0.0
    """Dropout after the activation (BART); `"dropout"` in GTE."""


class ConvolutionSettings(Settings, frozen=True):
    """Convolution of the embedding, which is added to the output of the first layer."""

    tokens: Count = 3
    """Kernel size in tokens, an odd number."""
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
    """Whether to start every head with a dense layer, the pooler's activation and a norm."""
    bias: bool = True
    """Whether to add biases to the dense layers of heads."""
    dropout: Share | None = None
    """Dropout before a classifier's last layer. Default: the model's `dropout`."""
    dense_dropout: NamedRate = 0.0
    """Dropout before a classifier's dense layer."""
    tag_dropout: NamedRate = "head.dropout"
    """Dropout before the last layer of a token classifier."""
    choose_dropout: NamedRate = "head.dropout"
    """Dropout before the last layer of multiple choice."""
    answer_dropout: NamedRate = 0.0
    """Dropout before the last layer of question answering."""
    sop_dropout: NamedRate = 0.0
    """Dropout before the last layer of sentence order prediction."""
    lm_bias: bool = False
    """Whether to add a bias to the LM head (Marian, BART)."""
    lm_tied: bool = True
    """Whether to use the token embedding as the output matrix of the LM head; `false` in many Llama
    models.
    """
    lm_scaled: bool = False
    """Whether to divide states by √D before the output matrix (`true` in T5, unless `lm_tied` is
    `false`, as in T5 v1.1)."""


class EncoderConfig(Settings, frozen=True):
    """Settings of all encoders and decoders. Subclasses add settings of an architecture.

    Properties describe the architecture, so that other modules do not depend on its class.
    """

    encoder_class: ClassVar[str]
    """Class of the encoder, as `module:attribute`."""
    decoder_class: ClassVar[str]
    """Class of the decoder, as `module:attribute`."""
    is_sequential: ClassVar[bool] = False
    """Whether a layer computes the state of each token from the state of the token before it."""

    vocab: Count
    """Number of token embeddings, V."""
    hidden: Count = 768
    """Hidden size, D."""
    layers: Annotated[int, Meta(ge=1, le=1000)] = 12
    """Number of layers."""
    max_positions: Count = 512
    """Maximum sequence length in tokens, including special tokens."""
    pad_id: Annotated[int, Meta(ge=0)] = 0
    """Id of the padding token. Packed batches contain no padding, but RoBERTa checkpoints start
    positions at pad + 1, and MPNet requires 1.
    """
    dropout: Share = 0.1
    """Dropout of embeddings and before residual connections."""
    head: HeadSettings = HeadSettings()

    def rate(self, path: str) -> float:
        """Return a dropout probability by the path of its setting, which may name another one."""
        value = at(self, path)
        if value is None:
            return self.dropout
        return self.rate(value) if isinstance(value, str) else float(value)

    def check_decoder(self, decoder: EncoderConfig) -> None:
        """Check that a decoder of the same architecture fits the encoder.

        Args:
            decoder: Settings of the decoder.

        Raises:
            ConfigError: If the decoder does not fit.
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
        """Standard deviation of a new token embedding. None means the value of other matrices."""
        return None


class TransformerConfig(EncoderConfig, frozen=True):
    """Settings of a Transformer."""

    encoder_class: ClassVar[str] = "bertkit.models.transformer:Transformer"
    decoder_class: ClassVar[str] = encoder_class

    embedding: Count | None = None
    """Size of the token embedding, E. Default: `hidden`. If it differs, a dense layer projects the
    embedding (ALBERT, ELECTRA).
    """
    scale_embedding: bool = False
    """Whether to multiply the token embedding by √E (Vaswani et al. 2017, section 3.4)."""
    layer_sharing: tuple[int, ...] | None = None
    """Index of the weights of each layer, from 0; all 0 in ALBERT. By default each layer has its
    own weights.
    """
    heads: Count = 12
    """Number of attention heads per layer, H."""
    intermediate: Count = 3072
    """Inner size of the feed-forward network."""
    token_types: Annotated[int, Meta(ge=0)] = 2
    """Number of segment embeddings: 2 for sentences A and B, or 0 for none."""
    attention_dropout: Share = 0.1
    """Dropout of attention weights."""
    positions: Positions = LearnedPositions()
    """Position encoding."""
    norm: NormSettings = NormSettings()
    """Normalization of the embedding and of the layers."""
    attention: AttentionSettings = AttentionSettings()
    """Settings of attention."""
    feedforward: FeedForwardSettings = FeedForwardSettings()
    """Settings of the feed-forward networks."""
    convolution: ConvolutionSettings | None = None
    """Convolution of the embedding, added to the output of the first layer (DeBERTa v2 xlarge).
    Default: none.
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
                "rotary positions require an even head dimension, hidden / heads, "
                f"got {self.head_width}"
            )
        window = self.attention.window
        if window is not None and window.base is not None and not rotary:
            raise ValueError("attention.window.base requires rotary positions; remove it")
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
            raise ConfigError("decoder.attention.cross must be true in a decoder; set it")
        if self.attention.cross:
            raise ConfigError("attention.cross is not supported in an encoder; remove it")

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
        # T5 divides states by √D before the tied LM head. With a smaller embedding, the logits
        # would be nearly equal for many steps.
        # Source: google-research/text-to-text-transfer-transformer.
        return 1.0 if self.head.lm_scaled else None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Attention window of each layer, in tokens on each side. None means global attention."""
        window = self.attention.window
        if window is None:
            return (None,) * self.layers
        return tuple(window.tokens if n % window.global_every else None for n in range(self.layers))
