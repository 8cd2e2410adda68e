"""A model is an encoder, perhaps a decoder, and named heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.errors import ConfigError, did_you_mean
from bertkit.models.config import EncoderConfig, TransformerConfig
from bertkit.models.encoder import Encoder, FeatureEncoder
from bertkit.models.heads import (
    CausalClassifier,
    CausalLM,
    Classifier,
    CRFTagger,
    MaskedLM,
    Pooler,
    ReplacedTokens,
    SpanHead,
    Tagger,
    VectorClassifier,
)
from bertkit.models.transformer import Transformer
from bertkit.nn.initialization import initialize
from bertkit.nn.pooling import Pooling
from bertkit.registry import import_object

HEADS = (
    *("mlm", "lm", "nsp", "sop", "rtd", "pooler"),
    *("classify", "choose", "answer", "tag", "crf", "vector"),
)
"""The heads bertkit knows by name: masked words, the next word, next sentence, sentence order,
replaced tokens, a pooled [CLS]; labels (or one number) of a text or pair, a score of a choice, the
span of an answer, labels of words, and those with a CRF over them; labels by a text's vector."""

LABELLED = ("classify", "tag", "crf", "vector")
"""Those whose outputs have names."""

OURS = ("vector",)
"""Those that no family has, and whose weights keep our names in any folder."""

OF_SEQUENCES = ("classify", "choose")
"""Those that give a sequence's label or score: of a causal model from its last token."""

T = TypeVar("T")


HeadMaker = Callable[[Any], nn.Module]
"""What builds a head that is not among `HEADS`."""


class Model(nn.Module):
    """An encoder and the heads that read it: {mlm, nsp} to pretrain, {classify} to fine-tune.

    With a decoder, heads read the decoder's states. Raises: ConfigError when the two do not fit.
    """

    def __init__(
        self,
        encoder: Encoder,
        heads: Mapping[str, nn.Module],
        decoder: Encoder | None = None,
    ) -> None:
        super().__init__()
        if decoder is not None:
            encoder.config.check_decoder(decoder.config)
        self.encoder = encoder
        self.decoder = decoder
        self.heads = nn.ModuleDict(dict(heads))
        self.faster_layers: Callable[[Batch], Tensor | None] | None = None
        """What computes the encoder's states in its place, of batches with which it is faster."""

    @property
    def config(self) -> EncoderConfig:
        return self.encoder.config

    @property
    def transformer(self) -> Transformer:
        """The encoder, if it is a Transformer.

        Raises:
            ConfigError: If the encoder has no layers and heads of attention.
        """
        if not isinstance(self.encoder, Transformer):
            name = type(self.encoder).__name__
            raise ConfigError(f"{name} has no layers and heads of attention; use a Transformer")
        return self.encoder

    @property
    def causal(self) -> bool:
        """Whether the model has no decoder and each state depends on earlier tokens only (GPT)."""
        return self.decoder is None and self.config.is_causal

    def states(self, batch: Batch) -> Tensor:
        """What heads read: the last states of the decoder, or of an encoder alone."""
        if self.decoder is None:
            return self.encoded(batch)
        assert batch.source is not None
        states: Tensor = self.decoder(batch, memory=self.encoder.memory(batch.source))
        return states

    def encoded(self, batch: Batch) -> Tensor:
        """The encoder's last states. Shapes: (N, D)."""
        states = None if self.faster_layers is None else self.faster_layers(batch)
        return self.encoder(batch) if states is None else states

    @overload
    def forward(self, batch: Batch) -> dict[str, Tensor]: ...
    @overload
    def forward(self, batch: Batch, compute: Callable[[Model, Batch], T]) -> T: ...

    def forward(self, batch: Batch, compute: Callable[[Model, Batch], Any] | None = None) -> Any:
        """What `compute` makes of the batch; by default the output of each head.

        Training goes through here with its objective, so that a module may be put around a model.
        """
        if compute is not None:
            return compute(self, batch)
        if not isinstance(batch, Batch):
            raise ConfigError(
                f"model: expected a Batch, got {type(batch).__name__}; use "
                'bertkit.pipeline("token-embeddings", ...) for hidden states of texts'
            )
        states = self.states(batch)
        return {name: head(states, batch) for name, head in self.heads.items()}

    def with_heads(self, heads: Mapping[str, nn.Module]) -> Model:
        """The same stacks and heads, and these: what an objective adds to learn by."""
        return Model(self.encoder, {**dict(self.heads.items()), **heads}, self.decoder)


def build(
    config: EncoderConfig,
    heads: Iterable[str] | Mapping[str, HeadMaker] = (),
    *,
    labels: Sequence[str] = (),
    decoder: EncoderConfig | None = None,
) -> Model:
    """Return a model with new weights, drawn from torch's generator.

    Args:
        config: Settings of the encoder.
        heads: Names of heads of `HEADS`, or the functions that build heads, by name.
        labels: Names of the outputs of `classify`, `tag` and `crf`.
        decoder: Settings of the decoder.
    """
    encoder, top = _stacks(config, decoder)
    model = Model(encoder, _heads(heads, top or encoder, labels), top)
    initialize(model)
    std = (top or encoder).config.embedding_std
    if std is not None:
        nn.init.normal_(encoder.embedding.tokens.weight, std=std)
    return model


def empty(
    config: EncoderConfig,
    heads: Iterable[str] | Mapping[str, HeadMaker],
    *,
    labels: Sequence[str] = (),
    decoder: EncoderConfig | None = None,
    pooling: Pooling | None = None,
    build: Callable[[Any], Encoder] | None = None,
) -> Model:
    """Return a model without storage for its weights, to be filled from a checkpoint.

    Args:
        config: Settings of the encoder.
        heads: As in `build`.
        labels: As in `build`.
        decoder: Settings of the decoder.
        pooling: Pooling of the model directory.
        build: Function that returns the encoder. Default: the class of its configuration.
    """
    with torch.device("meta"):
        encoder, top = _stacks(config, decoder, build)
        return Model(encoder, _heads(heads, top or encoder, labels, pooling), top)


def _stacks(
    config: EncoderConfig,
    decoder: EncoderConfig | None,
    build: Callable[[Any], Encoder] | None = None,
) -> tuple[Encoder, Encoder | None]:
    """Return an encoder and a decoder, which share a token embedding of the same shape.

    Source: Vaswani et al. 2017, section 3.4.
    """
    encoder: Encoder = (build or import_object(config.encoder_class))(config)
    if decoder is None:
        return encoder, None
    top: Encoder = import_object(decoder.decoder_class)(decoder)
    if (config.vocab, config.width) == (decoder.vocab, decoder.width):
        top.embedding.tokens = encoder.embedding.tokens
    return encoder, top


def _heads(
    heads: Iterable[str] | Mapping[str, HeadMaker],
    encoder: Encoder,
    labels: Sequence[str],
    pooling: Pooling | None = None,
) -> dict[str, nn.Module]:
    makers = heads if isinstance(heads, Mapping) else {}
    return {
        name: makers[name](encoder) if name in makers else head(name, encoder, labels, pooling)
        for name in heads
    }


def head(
    name: str,
    encoder: Encoder,
    labels: Sequence[str] = (),
    pooling: Pooling | None = None,
) -> nn.Module:
    """Return a new head for the states of an encoder or decoder.

    Args:
        name: One of `HEADS`.
        encoder: The encoder, or the decoder of a model that has one.
        labels: Names of the outputs of a head in `LABELLED`.
        pooling: How the head `vector` pools states; by default their mean.

    Raises:
        ConfigError: If the name is unknown, labels are missing, or the head needs a Transformer.
    """
    if name in LABELLED and not labels:
        raise ConfigError(f"heads: {name} needs the names of its labels")
    if isinstance(encoder, FeatureEncoder):
        return encoder.build_head(name, labels)
    config, tokens = encoder.config, encoder.embedding.tokens
    if name in OF_SEQUENCES and config.is_causal:
        return CausalClassifier(config, len(labels) if name in LABELLED else 1)
    if name == "lm":
        return CausalLM(config, tokens)
    if name == "vector":
        return VectorClassifier(pooling or Pooling(), config.hidden, len(labels))
    if not isinstance(config, TransformerConfig):
        raise ConfigError(
            f"heads: {name} is not supported by {type(encoder).__name__}; use a Transformer"
        )
    rates = {"first": config.rate("head.dense_dropout"), "last": config.rate("head.dropout")}
    makers: dict[str, Callable[[], nn.Module]] = {
        "mlm": lambda: MaskedLM(config, tokens),
        "nsp": lambda: Classifier(config, 2),
        "sop": lambda: Classifier(config, 2, last=config.rate("head.sop_dropout")),
        "rtd": lambda: ReplacedTokens(config),
        "pooler": lambda: Pooler(config),
        "classify": lambda: Classifier(config, len(labels), **rates),
        "choose": lambda: Classifier(config, 1, last=config.rate("head.choose_dropout")),
        "answer": lambda: SpanHead(config),
        "tag": lambda: Tagger(config, len(labels)),
        "crf": lambda: CRFTagger(config, labels),
    }
    if name not in makers:
        raise ConfigError(f"heads: no head is named {name!r}; {did_you_mean(name, HEADS)}")
    return makers[name]()
