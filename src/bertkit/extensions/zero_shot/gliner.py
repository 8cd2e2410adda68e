"""Settings and layers of GLiNER, which scores spans of words for labels that are in its input.

Source: Zaratiana et al. 2024, "GLiNER: Generalist Model for Named Entity Recognition using
Bidirectional Transformer". Settings and weights have the same names as in the package `gliner`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from bertkit.config import Count
from bertkit.published_keys import KeyTable

Span = tuple[int, int, int]
"""A span: its first word, its last word, and the index of its label."""

TRAINING = "affects only training"

LABELS = 16
"""Number of labels for which `TokenScorer` computes scores at a time."""

KEYS = KeyTable(
    applied=(
        *("class_token_index", "embed_ent_token", "encoder_config", "ent_token", "hidden_size"),
        *("max_len", "max_width", "num_rnn_layers", "sep_token", "vocab_size"),
    ),
    irrelevant={
        "_attn_implementation": "changes speed only",
        "id_to_classes": "belongs to precomputed_prompts_mode",
        "model_name": "the encoder is in the same directory",
        "model_type": "the other settings determine the architecture",
        "name": "name of the run that trained the model",
        "num_post_fusion_layers": "belongs to post_fusion_schema",
        **dict.fromkeys(("dropout", "fine_tune", "max_neg_type_ratio", "max_types"), TRAINING),
        **dict.fromkeys(("neg_spans_ratio", "span_loss_coef", "token_loss_coef"), TRAINING),
    },
    neutral={
        "decoder_config": (None,),
        "fuse_layers": (False,),
        "labels_decoder": (None,),
        "labels_encoder": (None,),
        "post_fusion_schema": ("", None),
        "precomputed_prompts_mode": (None, False),
        "relations_layer": (None,),
        "represent_spans": (False,),
        "span_encoder_config": (None,),
        "span_mode": ("markerV0", "token_level"),
        "subtoken_pooling": ("first",),
        "words_splitter_type": ("whitespace",),
    },
)
"""Which keys of `gliner_config.json` are supported."""


class GlinerConfig(msgspec.Struct, frozen=True):
    """The settings in `gliner_config.json` that affect predictions."""

    span_mode: str = "markerV0"
    """What is scored: spans of words (markerV0), or words as the start, end or inside of an entity
    (token_level)."""
    hidden_size: Count = 512
    """Size D of the states that follow the encoder."""
    max_width: Count = 12
    """Maximum number of words in a span, if `span_mode` is markerV0."""
    max_len: Count = 384
    """Maximum number of words in a text."""
    num_rnn_layers: Annotated[int, Meta(ge=0, le=64)] = 1
    """Number of layers of the BiLSTM that processes the words."""
    ent_token: str = "<<ENT>>"
    """Token before each label."""
    sep_token: str = "<<SEP>>"
    """Token between the labels and the words."""
    embed_ent_token: bool = True
    """Whether the state of a label is that of its `ent_token`. If false, it is the state of the
    next token."""
    class_token_index: int = -1
    """Id of `ent_token`, or -1 if the tokenizer does not contain GLiNER's special tokens."""
    vocab_size: int = -1
    """Size of the vocabulary, or -1 if the tokenizer does not contain GLiNER's special tokens."""
    encoder_config: dict[str, Any] | None = None
    """Content of the encoder's config.json. Default: read config.json in the model directory."""

    @property
    def adds_tokens(self) -> bool:
        """Whether GLiNER's special tokens must be added to the tokenizer."""
        return -1 in (self.class_token_index, self.vocab_size)


class EntityHead(nn.Module):
    """A head that scores spans of words for labels, from the states of words and labels.

    Args:
        config: Settings of the model.
        inputs: Size of the encoder's states.
    """

    def __init__(self, config: GlinerConfig, inputs: int) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.projection = nn.Linear(inputs, size) if inputs != size else nn.Identity()
        self.lstm = None
        if config.num_rnn_layers:
            layers = config.num_rnn_layers
            self.lstm = nn.LSTM(size, size // 2, layers, bidirectional=True)
        self.scorer = (TokenScorer if config.span_mode == "token_level" else SpanScorer)(config)

    def forward(
        self, states: Tensor, labels: Sequence[int], words: Sequence[int]
    ) -> Iterator[Tensor]:
        """Compute the scores for the sequences in a batch.

        Args:
            states: For one sequence after the other, the states of its labels and then of its
                words.
            labels: Number of labels C in each sequence.
            words: Number of words W in each sequence, which is at least 1.

        Yields:
            The logits of each sequence.

        Shapes:
            states: (N, D of the encoder); yields (W, K, C) for markerV0, where K is the maximum
            number of words of a span, and (W, C, 3) for token_level.
        """
        counts = [count for pair in zip(labels, words, strict=True) for count in pair]
        parts = self.projection(states).split(counts)
        label_states, word_states = torch.cat(parts[::2]), parts[1::2]
        if self.lstm is not None:
            packed: PackedSequence = self.lstm(pack_sequence(word_states, enforce_sorted=False))[0]
            word_states = unpack_sequence(packed)
        yield from self.scorer(label_states, labels, torch.cat(word_states), words)


class SpanScorer(nn.Module):
    """A layer that scores spans: the dot product of the vectors of span and label (markerV0).

    The vector of a span is computed by an MLP from the states of its first and last word. Because
    there are more spans than words and labels, the matrices of this MLP are applied to words and
    labels instead. Let A and B be the two halves of the columns of its first matrix, b the bias of
    its first layer, and V and v the matrix and bias of its second layer. The score is then V^T
    label · relu(A start + B end + b) + v · label.
    """

    def __init__(self, config: GlinerConfig) -> None:
        super().__init__()
        size, self.width = config.hidden_size, config.max_width
        self.project_start, self.project_end = _mlp(size, size), _mlp(size, size)
        self.label = _mlp(size, size)
        self.out_project = _mlp(2 * size, size)

    def forward(
        self, labels: Tensor, label_counts: Sequence[int], words: Tensor, word_counts: Sequence[int]
    ) -> Iterator[Tensor]:
        """Yield the logits (W, K, C) of each sequence; see `EntityHead`.

        The logits of spans that would end after the last word are meaningless.
        """
        first, last = _linear_layers(self.out_project)
        left, right = first.weight.chunk(2, 1)
        starts = F.linear(self.project_start(words).relu(), left, first.bias).split(word_counts)
        ends = F.linear(self.project_end(words).relu(), right).split(word_counts)
        labels = self.label(labels)
        queries = (labels @ last.weight).split(label_counts)
        offsets = (labels @ last.bias).split(label_counts)
        for start, end, query, offset in zip(starts, ends, queries, offsets, strict=True):
            width = min(self.width, len(end))
            windows = F.pad(end, (0, 0, 0, width - 1)).unfold(0, width, 1).transpose(1, 2)
            yield F.linear((start[:, None] + windows).relu_(), query, offset)

    def spans(self, scores: NDArray[np.float32], threshold: float) -> Iterator[tuple[Span, float]]:
        """Yield each span with a probability above the threshold, and this probability.

        `scores` contains probabilities of the shape (W, K, C).
        """
        for start, width, label in np.argwhere(scores > threshold).tolist():
            if start + width < len(scores):
                yield (start, start + width, label), float(scores[start, width, label])


class TokenScorer(nn.Module):
    """A layer that scores words as the start, end, and inside of an entity (token_level)."""

    def __init__(self, config: GlinerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.proj_token, self.proj_label = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size)
        self.out_mlp = _mlp(3 * size, size, 3)

    def forward(
        self, labels: Tensor, label_counts: Sequence[int], words: Tensor, word_counts: Sequence[int]
    ) -> Iterator[Tensor]:
        """Yield the logits (W, C, 3) of each sequence; see `EntityHead`."""
        first, last = _linear_layers(self.out_mlp)
        of_word, of_label, of_both = first.weight.chunk(3, 1)
        added, factors = self.proj_token(words).chunk(2, 1)
        starts, factors = F.linear(added, of_word, first.bias), factors.split(word_counts)
        label_added, label_factors = self.proj_label(labels).chunk(2, 1)
        offsets = F.linear(label_added, of_label).split(label_counts)
        rows = zip(
            *(starts.split(word_counts), factors, offsets, label_factors.split(label_counts)),
            strict=True,
        )
        for start, factor, offset, label_factor in rows:
            logits = []
            # Process only a few labels at a time, because the tensors have 4 D numbers per word and
            # label.
            for added, scale in zip(offset.split(LABELS), label_factor.split(LABELS), strict=True):
                both = F.linear(factor[:, None] * scale, of_both)
                logits.append(last((start[:, None] + added + both).relu_()))
            yield torch.cat(logits, 1)

    def spans(self, scores: NDArray[np.float32], threshold: float) -> Iterator[tuple[Span, float]]:
        """Yield each span with a probability above the threshold, and this probability.

        `scores` contains probabilities of the shape (W, C, 3).

        The probability of a span is the minimum of three kinds of probabilities: that its first
        word is a start, that its last word is an end, and that each of its words is inside.
        """
        starts, ends, inside = np.moveaxis(scores, 2, 0)
        for start, label in np.argwhere(starts > threshold).tolist():
            lowest = starts[start, label]
            for end in range(start, len(scores)):
                lowest = min(lowest, inside[end, label])
                if inside[end, label] < threshold:
                    break
                if ends[end, label] > threshold:
                    yield (start, end, label), float(min(lowest, ends[end, label]))


def _mlp(inputs: int, size: int, outputs: int | None = None) -> nn.Sequential:
    """Create an MLP whose linear layers have the same indices as in GLiNER."""
    first, last = nn.Linear(inputs, 4 * size), nn.Linear(4 * size, outputs or size)
    # GLiNER has a dropout in the place of Identity.
    return nn.Sequential(first, nn.ReLU(), nn.Identity(), last)


def _linear_layers(mlp: nn.Sequential) -> tuple[nn.Linear, nn.Linear]:
    return cast(nn.Linear, mlp[0]), cast(nn.Linear, mlp[3])
