"""Models: an encoder, optionally a decoder, and named heads."""

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
"""Names of the built-in heads.

Pretraining: masked LM (`mlm`), causal LM (`lm`), next sentence prediction (`nsp`), sentence order
prediction (`sop`), replaced token detection (`rtd`), and the pooled [CLS] state (`pooler`).

Fine-tuning: classification or regression (`classify`), multiple choice (`choose`), extractive
question answering (`answer`), token classification (`tag`), token classification with a CRF
(`crf`), and classification of sentence embeddings (`vector`).
"""

LABELED = ("classify", "tag", "crf", "vector")
"""Heads whose outputs have label names."""

BERTKIT_HEADS = ("vector",)
"""Heads that no model family defines. Checkpoints store their weights under bertkit's names."""

SEQUENCE_HEADS = ("classify", "choose")
"""Heads with one output per sequence. In causal models, they compute it from the last token."""

T = TypeVar("T")


HeadMaker = Callable[[Any], nn.Module]
"""Function that builds a custom head. Its argument is the decoder, if there is one, or the encoder.
"""


class Model(nn.Module):
    """Encoder with named heads, such as {mlm, nsp} (pretraining) or {classify} (fine-tuning).

    Args:
        encoder: The encoder.
        heads: Heads by name. Their input is the hidden states of the decoder, if there is one, or
            of the encoder.
        decoder: The decoder of an encoder-decoder model.

    Raises:
        ConfigError: If the decoder does not fit the encoder.
    """

    def __init__(
        self, encoder: Encoder, heads: Mapping[str, nn.Module], decoder: Encoder | None = None
    ) -> None:
        super().__init__()
        if decoder is not None:
            encoder.config.check_decoder(decoder.config)
        self.encoder = encoder
        self.decoder = decoder
        self.heads = nn.ModuleDict(dict(heads))
        self.faster_layers: Callable[[Batch], Tensor | None] | None = None
        """Faster implementation of the encoder. It returns None for batches that it leaves to the
        encoder.
        """

    @property
    def config(self) -> EncoderConfig:
        """Settings of the encoder."""
        return self.encoder.config

    @property
    def transformer(self) -> Transformer:
        """The encoder, if it is a Transformer.

        Raises:
            ConfigError: If the encoder is not a Transformer.
        """
        if not isinstance(self.encoder, Transformer):
            name = type(self.encoder).__name__
            raise ConfigError(f"{name} is not a Transformer; use a model with attention layers")
        return self.encoder

    @property
    def causal(self) -> bool:
        """Whether the model is decoder-only, so that tokens do not attend to later tokens."""
        return self.decoder is None and self.config.is_causal

    def states(self, batch: Batch) -> Tensor:
        """Compute the hidden states that are the input of the heads.

        These are the last hidden states of the decoder, if there is one, or of the encoder.

        Args:
            batch: The batch. If the model has a decoder, `batch.source` is the input of the
                encoder. For BART, the source may be None. The encoder and the decoder then read the
                same text.

        Returns:
            Hidden states.

        Shapes:
            returns: (N, D).
        """
        if self.decoder is None:
            return self.encoder_states(batch)
        if batch.source is None and self.decoder.config.head.pooling == "last":
            batch = batch.as_source()
        assert batch.source is not None
        states: Tensor = self.decoder(batch, memory=self.encoder.memory(batch.source))
        return states

    def encoder_states(self, batch: Batch) -> Tensor:
        """Compute the last hidden states of the encoder.

        Args:
            batch: The batch.

        Returns:
            Hidden states.

        Shapes:
            returns: (N, D).
        """
        states = None if self.faster_layers is None else self.faster_layers(batch)
        return self.encoder(batch) if states is None else states

    @overload
    def forward(self, batch: Batch) -> dict[str, Tensor]: ...
    @overload
    def forward(self, batch: Batch, compute: Callable[[Model, Batch], T]) -> T: ...

    def forward(self, batch: Batch, compute: Callable[[Model, Batch], Any] | None = None) -> Any:
        """Compute the output of each head.

        Args:
            batch: The batch.
            compute: Function that is called with the model and the batch instead of the heads.
                Training passes its objective, because wrappers of the module (such as DDP) require
                that all computation happens within `forward`.

        Returns:
            The output of each head by name, or the result of `compute`.

        Raises:
            ConfigError: If `batch` is not a `Batch`.
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
        """Return a model with the same weights and additional heads.

        Args:
            heads: Heads by name. They replace existing heads of the same name.
        """
        return Model(self.encoder, {**dict(self.heads.items()), **heads}, self.decoder)


def build(
    config: EncoderConfig,
    heads: Iterable[str] | Mapping[str, HeadMaker] = (),
    *,
    labels: Sequence[str] = (),
    decoder: EncoderConfig | None = None,
) -> Model:
    """Build a model with randomly initialized weights, sampled with torch's default generator.

    Args:
        config: Settings of the encoder.
        heads: Names of built-in heads (see `HEADS`), or a mapping from names to functions that
            build heads.
        labels: Names of the outputs of the heads `classify`, `tag`, `crf`, and `vector`.
        decoder: Settings of the decoder, if the model has one.

    Returns:
        The model, on the CPU.

    Raises:
        ConfigError: If a head is unknown or not supported, labels are missing, or the decoder does
            not fit the encoder.
    """
    encoder, top = _encoder_and_decoder(config, decoder)
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
    """Build a model on the meta device, so that a checkpoint can be loaded into it.

    Args:
        config: Settings of the encoder.
        heads: Names of built-in heads (see `HEADS`), or a mapping from names to functions that
            build heads.
        labels: Names of the outputs of the heads `classify`, `tag`, `crf`, and `vector`.
        decoder: Settings of the decoder, if the model has one.
        pooling: Pooling that the head `vector` applies.
        build: Function that builds the encoder. Default: the class `config.encoder_class`.

    Returns:
        The model. Its weights have no storage yet.

    Raises:
        ConfigError: If a head is unknown or not supported, labels are missing, or the decoder does
            not fit the encoder.
    """
    with torch.device("meta"):
        encoder, top = _encoder_and_decoder(config, decoder, build)
        return Model(encoder, _heads(heads, top or encoder, labels, pooling), top)


def _encoder_and_decoder(
    config: EncoderConfig,
    decoder: EncoderConfig | None,
    build: Callable[[Any], Encoder] | None = None,
) -> tuple[Encoder, Encoder | None]:
    """Build an encoder and a decoder. They share one token embedding if both need the same shape.

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
    name: str, encoder: Encoder, labels: Sequence[str] = (), pooling: Pooling | None = None
) -> nn.Module:
    """Build a newly initialized head.

    Args:
        name: Name of a built-in head (see `HEADS`).
        encoder: The decoder, if the model has one, or the encoder.
        labels: Names of the outputs, which the heads in `LABELED` require.
        pooling: Pooling that the head `vector` applies. Default: mean pooling.

    Returns:
        The head.

    Raises:
        ConfigError: If the name is unknown, labels are missing, or the head requires a Transformer.
    """
    if name in LABELED and not labels:
        raise ConfigError(f"heads: {name} requires label names; set labels")
    if isinstance(encoder, FeatureEncoder):
        return encoder.build_head(name, labels)
    config, tokens = encoder.config, encoder.embedding.tokens
    if name in SEQUENCE_HEADS and config.is_causal and config.head.pooling != "last":
        return CausalClassifier(config, len(labels) if name in LABELED else 1)
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
        raise ConfigError(f"heads: unknown head {name!r}; {did_you_mean(name, HEADS)}")
    return makers[name]()
