"""A model is an encoder plus named heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.errors import ConfigError, did_you_mean
from bertkit.models.config import TransformerConfig
from bertkit.models.heads import Classifier, MaskedLM, Pooler
from bertkit.models.transformer import Transformer
from bertkit.nn.init import initialize

HEADS = ("mlm", "nsp", "sop", "pooler", "classify")
"""The heads a model may carry: masked words, next sentence, sentence order, a pooled [CLS], and
labels (or one number) for a text or pair."""


class Model(nn.Module):
    """An encoder and the heads that read it: {mlm, nsp} to pretrain, {classify} to fine-tune."""

    def __init__(self, encoder: Transformer, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(dict(heads))

    @property
    def config(self) -> TransformerConfig:
        return self.encoder.config

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        states = self.encoder(batch)
        return {name: head(states, batch) for name, head in self.heads.items()}


def build(config: TransformerConfig, heads: Iterable[str] = (), *, labels: int = 2) -> Model:
    """A model with fresh weights from torch's generator. `labels` is the width of `classify`."""
    encoder = Transformer(config)
    model = Model(encoder, {name: _head(name, encoder, labels) for name in heads})
    initialize(model)
    return model


def empty(config: TransformerConfig, heads: Iterable[str], *, labels: int) -> Model:
    """The same model without storage, to be filled from a checkpoint."""
    with torch.device("meta"):
        encoder = Transformer(config)
        return Model(encoder, {name: _head(name, encoder, labels) for name in heads})


def _head(name: str, encoder: Transformer, labels: int) -> nn.Module:
    match name:
        case "mlm":
            return MaskedLM(encoder.config, encoder.embedding.tokens)
        case "nsp" | "sop":
            return Classifier(encoder.config, 2)
        case "pooler":
            return Pooler(encoder.config)
        case "classify":
            return Classifier(encoder.config, labels, encoder.config.dropout)
    raise ConfigError(f"heads: no head is named {name!r}; {did_you_mean(name, HEADS)}")
