"""A model is an encoder, perhaps a decoder, and named heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.errors import ConfigError, did_you_mean
from bertkit.models.config import TransformerConfig
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
from bertkit.models.seq2seq import Encoded, RecurrentDecoder, RecurrentEncoder
from bertkit.models.transformer import Transformer
from bertkit.nn.initialization import initialize
from bertkit.nn.pooling import Pooling

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


class FeatureEncoder(nn.Module):
    """Base of encoders whose input features are frozen; extensions define them.

    Shapes: a batch of N tokens -> (N, D).
    """

    config: TransformerConfig
    embedding: Any
    """Module that combines the features; they have no token embedding."""

    def build_head(self, name: str, labels: Sequence[str]) -> nn.Module:
        """Return a new head of `HEADS`. Raises: ConfigError if it is not supported."""
        raise NotImplementedError

    def precompute(self, features: Sequence[Any]) -> list[Any]:
        """Return features of a task whose encodings contain frozen features instead of ids."""
        raise NotImplementedError


Encoder = Transformer | RecurrentEncoder | FeatureEncoder
Decoder = Transformer | RecurrentDecoder
"""Called alike: packed tokens -> packed states; `Model.memory` is what a decoder reads."""

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
        decoder: Decoder | None = None,
    ) -> None:
        super().__init__()
        if decoder is not None:
            _check_stacks(encoder.config, decoder.config)
        self.encoder = encoder
        self.decoder = decoder
        self.heads = nn.ModuleDict(dict(heads))
        self.faster_layers: Callable[[Batch], Tensor | None] | None = None
        """What computes the encoder's states in its place, of batches with which it is faster."""

    @property
    def config(self) -> TransformerConfig:
        return self.encoder.config

    @property
    def transformer(self) -> Transformer:
        """The encoder, for what is about its layers and heads. Raises: ConfigError for LSTMs."""
        if not isinstance(self.encoder, Transformer):
            raise ConfigError(
                "the model is made of LSTMs, which have no layers and heads of attention; take a "
                "Transformer"
            )
        return self.encoder

    @property
    def causal(self) -> bool:
        """Whether a token sees itself and those before it alone, and nothing else (GPT)."""
        return self.decoder is None and self.config.attention.causal

    def states(self, batch: Batch) -> Tensor:
        """What heads read: the last states of the decoder, or of an encoder alone."""
        if self.decoder is None:
            return self.encoded(batch)
        assert batch.source is not None
        states: Tensor = self.decoder(batch, memory=self.memory(batch.source))
        return states

    def encoded(self, batch: Batch) -> Tensor:
        """The encoder's last states. Shapes: (N, D)."""
        states = None if self.faster_layers is None else self.faster_layers(batch)
        return self.encoder(batch) if states is None else states

    def memory(self, source: Batch) -> Tensor | Encoded:
        """What the decoder reads of a source: the encoder's states, of LSTMs with their cells."""
        encoder = self.encoder
        memory: Tensor | Encoded = (
            encoder.read(source) if isinstance(encoder, RecurrentEncoder) else encoder(source)
        )
        return memory

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
    config: TransformerConfig,
    heads: Iterable[str] | Mapping[str, HeadMaker] = (),
    *,
    labels: Sequence[str] = (),
    decoder: TransformerConfig | None = None,
) -> Model:
    """A model with fresh weights from torch's generator.

    `labels` names the outputs of `classify`, `tag` and `crf`; heads of one's own come with what
    builds them.
    """
    encoder, top = _stacks(config, decoder)
    model = Model(encoder, _heads(heads, top or encoder, labels), top)
    initialize(model)
    if (top or encoder).config.head.lm_scaled:
        # T5's states are divided by √D before they meet the embedding: a smaller one would make
        # all words alike for long. Source: google-research/text-to-text-transfer-transformer
        nn.init.normal_(encoder.embedding.tokens.weight)
    if config.recurrent:
        # times √D it has unit variance: of smaller numbers an LSTM learns little for long
        nn.init.normal_(encoder.embedding.tokens.weight, std=config.width**-0.5)
    return model


def empty(
    config: TransformerConfig,
    heads: Iterable[str] | Mapping[str, HeadMaker],
    *,
    labels: Sequence[str] = (),
    decoder: TransformerConfig | None = None,
    pooling: Pooling | None = None,
    build: Callable[[TransformerConfig], Encoder] | None = None,
) -> Model:
    """Return the same model without storage, to be filled from a checkpoint.

    `pooling` is that of its directory. `build` returns the encoder; by default the configuration
    determines it.
    """
    with torch.device("meta"):
        encoder, top = _stacks(config, decoder, build)
        return Model(encoder, _heads(heads, top or encoder, labels, pooling), top)


def _stacks(
    config: TransformerConfig,
    decoder: TransformerConfig | None,
    build: Callable[[TransformerConfig], Encoder] | None = None,
) -> tuple[Encoder, Decoder | None]:
    """An encoder, and a decoder that shares its token embedding where both have one vocabulary:
    Vaswani et al. 2017, section 3.4."""
    usual = RecurrentEncoder if config.recurrent else Transformer
    encoder = (build or usual)(config)
    if decoder is None:
        return encoder, None
    top = RecurrentDecoder(decoder) if decoder.recurrent else Transformer(decoder)
    if (config.vocab, config.width) == (decoder.vocab, decoder.width):
        top.embedding.tokens = encoder.embedding.tokens
    return encoder, top


def _check_stacks(encoder: TransformerConfig, decoder: TransformerConfig) -> None:
    if not decoder.attention.cross:
        raise ConfigError("decoder.attention.cross: a decoder attends to its encoder; set it")
    if encoder.attention.cross:
        raise ConfigError("attention.cross: an encoder has nothing else to attend to; leave it out")
    if encoder.hidden != decoder.hidden:
        raise ConfigError(
            f"decoder.hidden = {decoder.hidden}, and its encoder has {encoder.hidden}; make them "
            "equal"
        )
    if encoder.recurrent != decoder.recurrent:
        raise ConfigError(
            "decoder.recurrent: an encoder and its decoder share these settings; set "
            "model.recurrent alone"
        )
    if encoder.recurrent and encoder.layers != decoder.layers:
        raise ConfigError(
            f"decoder.layers = {decoder.layers}, and its encoder has {encoder.layers}: each LSTM "
            "starts where one of the encoder ended; make them equal"
        )


def _heads(
    heads: Iterable[str] | Mapping[str, HeadMaker],
    encoder: Encoder | Decoder,
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
    encoder: Encoder | Decoder,
    labels: Sequence[str] = (),
    pooling: Pooling | None = None,
) -> nn.Module:
    """A head of `HEADS` for this encoder; `pooling` is how vectors are made, by default the mean.

    Raises: ConfigError for another name.
    """
    config = encoder.config
    if name in LABELLED and not labels:
        raise ConfigError(f"heads: {name} needs the names of its labels")
    if isinstance(encoder, FeatureEncoder):
        return encoder.build_head(name, labels)
    if name in OF_SEQUENCES and config.attention.causal:
        return CausalClassifier(config, len(labels) if name in LABELLED else 1)
    match name:
        case "mlm":
            return MaskedLM(config, encoder.embedding.tokens)
        case "lm":
            return CausalLM(config, encoder.embedding.tokens)
        case "nsp":
            return Classifier(config, 2)
        case "sop":
            return Classifier(config, 2, last=config.rate("head.sop_dropout"))
        case "rtd":
            return ReplacedTokens(config)
        case "pooler":
            return Pooler(config)
        case "classify":
            rates = {
                "first": config.rate("head.dense_dropout"),
                "last": config.rate("head.dropout"),
            }
            return Classifier(config, len(labels), **rates)
        case "choose":
            return Classifier(config, 1, last=config.rate("head.choose_dropout"))
        case "answer":
            return SpanHead(config)
        case "tag":
            return Tagger(config, len(labels))
        case "crf":
            return CRFTagger(config, labels)
        case "vector":
            return VectorClassifier(pooling or Pooling(), config.hidden, len(labels))
    raise ConfigError(f"heads: no head is named {name!r}; {did_you_mean(name, HEADS)}")
