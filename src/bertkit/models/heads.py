"""Heads: what reads the encoder's states and answers."""

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
from bertkit.nn.padding import in_tiles
from bertkit.nn.pooling import POOLINGS, Dense, Pool, Pooling, last


class LanguageModelHead(nn.Module):
    """Which piece stands at a place, from its state. Shapes: (N, D) -> (P, V).

    The output matrix is the token embedding itself (tied), if it is not said otherwise: Press &
    Wolf 2017.
    """

    bias: Tensor | None
    """(V,), added to the logits."""

    def __init__(self, tied: nn.Embedding) -> None:
        super().__init__()
        self.tied = (tied,)  # in a tuple: shared with the encoder, not owned

    @property
    def weight(self) -> Tensor:
        """(V, E), the token embedding."""
        return self.tied[0].weight

    def features(self, states: Tensor, batch: Batch) -> Tensor:
        """The states at the chosen places, ready for the output matrix. Shapes: (P, E)."""
        raise NotImplementedError

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        return F.linear(self.features(states, batch), self.weight, self.bias)


class MaskedLM(LanguageModelHead):
    """Which piece stands at a masked place. Shapes: (N, D) -> (M, V), the masked places only.

    Source: Devlin et al. 2019, section 3.1, task 1; the extra dense layer and norm are
    google-research/bert's `get_masked_lm_output`.
    """

    bias: Tensor

    def __init__(self, config: TransformerConfig, tied: nn.Embedding) -> None:
        super().__init__(tied)
        self.dense = nn.Linear(config.hidden, config.width, config.head.bias)
        self.norm = norm_of(config.norm, config.width)
        self.bias = nn.Parameter(torch.zeros(config.vocab))
        of_heads = config.head.norm  # ModernBERT's heads are all alike
        activation = config.head.activation if of_heads else config.feedforward.activation
        self.activation = ACTIVATIONS[config.head.mlm_activation or activation]

    def features(self, states: Tensor, batch: Batch) -> Tensor:
        """Shapes: (M, E)."""
        chosen = _chosen(states, batch)
        rows = in_tiles(chosen) if torch.is_grad_enabled() else chosen
        out: Tensor = self.norm(self.activation(self.dense(rows)))
        return out if rows is chosen else out[: len(chosen)]


class CausalLM(LanguageModelHead):
    """Which piece comes next: the states times a vector of each. Shapes: (N, D) -> (P, V).

    Source: Radford et al. 2018, equation 2.
    """

    def __init__(self, config: EncoderConfig, tied: nn.Embedding) -> None:
        super().__init__(tied)
        self.bias = nn.Parameter(torch.zeros(config.vocab)) if config.head.lm_bias else None
        shape = config.vocab, config.width
        self.output = None if config.head.lm_tied else nn.Parameter(torch.zeros(shape))
        self.scale = config.hidden**-0.5 if config.head.lm_scaled else None
        self.product: nn.Module | None = None
        """The output matrix as an engine runs it."""

    @property
    def weight(self) -> Tensor:
        """(V, E), the token embedding or a matrix of its own."""
        return super().weight if self.output is None else self.output

    def features(self, states: Tensor, batch: Batch) -> Tensor:
        chosen = _chosen(states, batch)
        return chosen if self.scale is None else chosen * self.scale

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        if self.product is None:
            return super().forward(states, batch)
        logits: Tensor = self.product(self.features(states, batch))
        return logits


class Transform(nn.Module):
    """A dense layer and its activation, then a norm if `head.norm`. Shapes: (…, D) -> (…, D)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden, config.head.bias)
        self.activation = ACTIVATIONS[config.head.activation]
        self.norm = norm_of(config.norm, config.hidden) if config.head.norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.activation(self.dense(x)))
        return out


class Pooler(nn.Module):
    """A vector for each sequence: a dense layer and its activation on [CLS] or on the mean state.

    Shapes: (N, D) -> (S, D).
    """

    def __init__(self, config: TransformerConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.transform = Transform(config)
        self.pool = POOLINGS[config.head.pooling]

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        pooled = self.dropout(self.pool(states, batch).to(states.dtype))
        out: Tensor = self.transform(pooled)
        return out


class Classifier(nn.Module):
    """Numbers for each sequence, from its pooled [CLS]. Shapes: (N, D) -> (S, L).

    With L classes these are logits, with L = 1 a regression's value or the score of a choice.
    Next-sentence and sentence-order prediction are this head with L = 2. `first` is the dropout
    before the dense layer, `last` that after it.
    Source: Devlin et al. 2019, sections 4.1 and 4.4; which families have which dropout is what
    transformers does, as these papers do not say.
    """

    def __init__(
        self, config: TransformerConfig, labels: int, *, first: float = 0.0, last: float = 0.0
    ) -> None:
        super().__init__()
        self.pooler = Pooler(config, first)
        self.dropout = Dropout(last)
        self.out = nn.Linear(config.hidden, labels)

    @property
    def labels(self) -> int:
        return self.out.out_features

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.dropout(self.pooler(states, batch)))
        return out


class CausalClassifier(nn.Module):
    """Numbers for each sequence of a causal stack, from the state of its last token, without a
    bias. Shapes: (N, D) -> (S, L).

    Source: Radford et al. 2018, section 3.2, equation 3; dropout before it, section 4.1.
    """

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.rate("head.dropout"))
        self.out = nn.Linear(config.hidden, labels, bias=False)

    @property
    def labels(self) -> int:
        return self.out.out_features

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.dropout(last(states, batch)))
        return out


class VectorClassifier(Pool):
    """Numbers for each sequence, from its vector: a linear layer. Shapes: (N, D) -> (S, L).

    Source: Tunstall et al. 2022, section 3, whose head is a logistic regression on the vectors.
    """

    def __init__(self, pooling: Pooling, hidden: int, labels: int) -> None:
        dense = pooling.dense
        if dense is not None:  # one to learn, of the same shape
            bias, width = dense.linear.bias is not None, dense.linear.out_features
            dense = Dense(hidden, width, dense.activation, bias=bias)
        super().__init__(replace(pooling, dense=dense))
        self.out = nn.Linear(pooling.width(hidden), labels)

    @property
    def labels(self) -> int:
        return self.out.out_features

    def vectors(self, states: Tensor, batch: Batch) -> Tensor:
        """Shapes: (N, D) -> (S, D or W)."""
        return super().forward(states, batch)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.vectors(states, batch).to(self.out.weight.dtype))
        return out


class Tagger(nn.Module):
    """Numbers for each place of a batch. Shapes: (N, D) -> (P, L).

    Source: Devlin et al. 2019, section 5.3 without the BiLSTM; figure 4d.
    """

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__()
        self.transform: nn.Module = nn.Identity()
        if isinstance(config, TransformerConfig) and config.head.norm:
            self.transform = Transform(config)
        self.dropout = Dropout(config.rate("head.tag_dropout"))
        self.out = nn.Linear(config.hidden, labels)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        out: Tensor = self.out(self.dropout(self.transform(_chosen(states, batch))))
        return out


class CRFTagger(Tagger):
    """A tagger whose numbers are the emissions of a CRF, which scores whole sequences of labels.

    The names of the labels say which may follow which.
    """

    def __init__(self, config: EncoderConfig, labels: Sequence[str]) -> None:
        super().__init__(config, len(labels))
        scheme = scheme_of_labels(labels)
        masks = scheme.masks(labels) if scheme else ()
        self.crf = CRF(len(labels), *map(torch.from_numpy, masks))


class ReplacedTokens(nn.Module):
    """How much each token looks replaced, a logit. Shapes: (N, D) -> (N,).

    Source: Clark et al. 2020, section 3.1, the discriminator.
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
    """How likely an answer starts and ends at each token. Shapes: (N, D) -> (N, 2).

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


def _chosen(states: Tensor, batch: Batch) -> Tensor:
    """The states at the batch's token_indices. Shapes: (N, D) -> (P, D)."""
    return states if batch.token_indices is None else states.index_select(0, batch.token_indices)
