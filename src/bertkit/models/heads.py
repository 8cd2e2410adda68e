"""Heads: modules that compute the outputs of a task from the last hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.data.tag_schemes import scheme_of_labels
from bertkit.models.block import norm_of
from bertkit.models.config import EncoderConfig, TransformerConfig
from bertkit.nn.crf import CRF
from bertkit.nn.dropout import Dropout
from bertkit.nn.feedforward import ACTIVATIONS
from bertkit.nn.padding import pad_to_tiles
from bertkit.nn.pooling import POOLINGS, Dense, Pool, Pooling, last


class LanguageModelHead(nn.Module):
    """Base class of language modeling heads, which compute logits over the vocabulary.

    By default, the output matrix is the token embedding (tied weights).

    Args:
        tied: Token embedding of the encoder or decoder.

    Shapes:
        (N, D) -> (P, V).

    Source: Press & Wolf 2017.
    """

    bias: Tensor | None
    """Bias of the logits. Shapes: (V,)."""

    def __init__(self, tied: nn.Embedding) -> None:
        super().__init__()
        # In a tuple, the embedding is not a parameter of this module, because it belongs to the
        # encoder.
        self.tied = (tied,)

    @property
    def weight(self) -> Tensor:
        """Output matrix: the token embedding. Shapes: (V, E)."""
        return self.tied[0].weight

    def features(self, states: Tensor, batch: Batch) -> Tensor:
        """Compute the vectors that the output matrix is applied to. Shapes: (N, D) -> (P, E)."""
        raise NotImplementedError

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        return F.linear(self.features(states, batch), self.weight, self.bias)


class MaskedLM(LanguageModelHead):
    """Masked language modeling head: logits of the M masked tokens. Shapes: (N, D) -> (M, V).

    Source: Devlin et al. 2019, section 3.1, task 1. The dense layer and the norm come from
    `get_masked_lm_output` in google-research/bert.
    """

    bias: Tensor

    def __init__(self, config: TransformerConfig, tied: nn.Embedding) -> None:
        super().__init__(tied)
        self.dense = nn.Linear(config.hidden, config.width, config.head.bias)
        self.norm = norm_of(config.norm, config.width)
        self.bias = nn.Parameter(torch.zeros(config.vocab))
        # If `head.norm` is set, all heads have the same activation, as in ModernBERT.
        activation = (config.head if config.head.norm else config.feedforward).activation
        self.activation = ACTIVATIONS[config.head.mlm_activation or activation]

    def features(self, states: Tensor, batch: Batch) -> Tensor:
        """Apply a dense layer, an activation, and a norm to states. Shapes: (N, D) -> (M, E)."""
        selected = _select_tokens(states, batch)
        rows = pad_to_tiles(selected) if torch.is_grad_enabled() else selected
        out: Tensor = self.norm(self.activation(self.dense(rows)))
        return out if rows is selected else out[: len(selected)]


class CausalLM(LanguageModelHead):
    """Causal language modeling head: next-token logits. Shapes: (N, D) -> (P, V).

    Source: Radford et al. 2018, equation 2.
    """

    def __init__(self, config: EncoderConfig, tied: nn.Embedding) -> None:
        super().__init__(tied)
        self.bias = nn.Parameter(torch.zeros(config.vocab)) if config.head.lm_bias else None
        shape = config.vocab, config.width
        self.output = None if config.head.lm_tied else nn.Parameter(torch.zeros(shape))
        self.scale = config.hidden**-0.5 if config.head.lm_scaled else None
        self.output_layer: nn.Module | None = None
        """Optimized linear layer with the output matrix. `Engine` sets it."""

    @property
    def weight(self) -> Tensor:
        """Output matrix: the token embedding, or a separate parameter. Shapes: (V, E)."""
        return super().weight if self.output is None else self.output

    def features(self, states: Tensor, batch: Batch) -> Tensor:
        """Select the states, and divide them by √D if `head.lm_scaled` is set.

        Shapes:
            (N, D) -> (P, D).
        """
        selected = _select_tokens(states, batch)
        return selected if self.scale is None else selected * self.scale

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        if self.output_layer is None:
            return super().forward(states, batch)
        logits: Tensor = self.output_layer(self.features(states, batch))
        return logits


class Transform(nn.Module):
    """Dense layer, activation, and a norm if `head.norm` is set. Shapes: (…, D) -> (…, D)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden, config.head.bias)
        self.activation = ACTIVATIONS[config.head.activation]
        self.norm = norm_of(config.norm, config.hidden) if config.head.norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.activation(self.dense(x)))
        return out


class Pooler(nn.Module):
    """Pooling of each sequence to one state, and a dense layer. Shapes: (N, D) -> (S, D)."""

    def __init__(self, config: TransformerConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.transform = Transform(config)
        self.pool = last if config.head.pooling == "last" else POOLINGS[config.head.pooling]

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        pooled = self.dropout(self.pool(states, batch).to(states.dtype))
        out: Tensor = self.transform(pooled)
        return out


class Classifier(nn.Module):
    """Sequence classification head that uses the pooled state. Shapes: (N, D) -> (S, L).

    The outputs are the logits of L classes. If L = 1, the output is the value of a regression or
    the score of a choice. Next sentence prediction and sentence order prediction use L = 2.

    Args:
        config: Settings of the encoder.
        labels: Number of outputs, L.
        first: Dropout probability before the pooler's dense layer.
        last: Dropout probability after the pooler.

    Source: Devlin et al. 2019, sections 4.1 and 4.4. The dropout of each family follows
    transformers, because the papers do not specify it.
    """

    def __init__(
        self, config: TransformerConfig, labels: int, *, first: float = 0.0, last: float = 0.0
    ) -> None:
        super().__init__()
        self.pooler = Pooler(config, first)
        self.dropout = Dropout(last)
        self.out = nn.Linear(config.hidden, labels)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.dropout(self.pooler(states, batch)))
        return out


class CausalClassifier(nn.Module):
    """Sequence classification head of causal models: a linear layer without bias on the last token.

    Shapes:
        (N, D) -> (S, L).

    Source: Radford et al. 2018, section 3.2, equation 3, and section 4.1 for the dropout.
    """

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.rate("head.dropout"))
        self.out = nn.Linear(config.hidden, labels, bias=False)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.dropout(last(states, batch)))
        return out


class VectorClassifier(Pool):
    """Linear classifier of sentence embeddings. Shapes: (N, D) -> (S, L).

    Source: Tunstall et al. 2022, section 3 (logistic regression on the embeddings).
    """

    def __init__(self, pooling: Pooling, hidden: int, labels: int) -> None:
        dense = pooling.dense
        # The head gets a new dense layer of the same shape, so that training does not change the
        # layer of `pooling`.
        if dense is not None:
            bias, width = dense.linear.bias is not None, dense.linear.out_features
            dense = Dense(hidden, width, dense.activation, bias=bias)
        super().__init__(replace(pooling, dense=dense))
        self.out = nn.Linear(pooling.width(hidden), labels)

    def vectors(self, states: Tensor, batch: Batch) -> Tensor:
        """Compute the sentence embeddings.

        Shapes:
            (N, D) -> (S, D), or (S, output size of the dense layer).
        """
        return super().forward(states, batch)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.vectors(states, batch).to(self.out.weight.dtype))
        return out


class Tagger(nn.Module):
    """Token classification head. Shapes: (N, D) -> (P, L).

    Source: Devlin et al. 2019, figure 4d, and section 5.3 without the BiLSTM.
    """

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__()
        self.transform: nn.Module = nn.Identity()
        if isinstance(config, TransformerConfig) and config.head.norm:
            self.transform = Transform(config)
        self.dropout = Dropout(config.rate("head.tag_dropout"))
        self.out = nn.Linear(config.hidden, labels)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.dropout(self.transform(_select_tokens(states, batch))))
        return out


class CRFTagger(Tagger):
    """Token classification head with a CRF. Its outputs are the emission scores of the CRF.

    The tagging scheme of the label names (such as BIO) determines the allowed transitions.
    """

    def __init__(self, config: EncoderConfig, labels: Sequence[str]) -> None:
        super().__init__(config, len(labels))
        scheme = scheme_of_labels(labels)
        masks = scheme.masks(labels) if scheme else ()
        self.crf = CRF(len(labels), *map(torch.from_numpy, masks))


class ReplacedTokens(nn.Module):
    """Replaced token detection head, which computes one logit per token. Shapes: (N, D) -> (N,).

    Source: Clark et al. 2020, section 3.1 (the discriminator).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.activation = ACTIVATIONS[config.feedforward.activation]
        self.out = nn.Linear(config.hidden, 1)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.activation(self.dense(states)))
        return out.squeeze(-1)


class SpanHead(nn.Module):
    """Extractive question answering head, which computes the logits of the answer's start and end.

    Shapes:
        (N, D) -> (N, 2).

    Source: Devlin et al. 2019, section 4.2.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.transform = Transform(config) if config.head.norm else nn.Identity()
        self.dropout = Dropout(config.rate("head.answer_dropout"))
        self.out = nn.Linear(config.hidden, 2)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.dropout(self.transform(states)))
        return out


def _select_tokens(states: Tensor, batch: Batch) -> Tensor:
    """Select the states at `batch.token_indices`. Shapes: (N, D) -> (P, D)."""
    return states if batch.token_indices is None else states.index_select(0, batch.token_indices)
