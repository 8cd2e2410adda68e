"""Tokens, attention weights, predictions, and hidden states of a model for a text.

Axis letters are as in `batch.py`. T is the number of tokens of the text, including special tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded, load
from bertkit.errors import CheckpointError, DataError, check_choice
from bertkit.models.block import Block
from bertkit.models.config import RotaryPositions
from bertkit.models.embedding import Embedding
from bertkit.models.heads import CausalLM, MaskedLM
from bertkit.models.surgery import Head, without_heads
from bertkit.models.transformer import Transformer
from bertkit.nn.attention import Trace, attention_weights, relations
from bertkit.pipelines import FillMask
from bertkit.synonyms import check_keywords
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer
from bertkit.view.arrays import Array, coded
from bertkit.view.head_patterns import begin, patterns
from bertkit.view.masked_predictions import filler, hidden, masked, next_words
from bertkit.view.page import framed, page, source
from bertkit.view.page_data import (
    EmbeddingPart,
    Embeddings,
    Explanation,
    Repeat,
    Shape,
    Token,
    Walk,
    Word,
)
from bertkit.view.token_text import spelled

MAX_TOKENS = 512
"""Maximum number of tokens of a text, even if the model accepts more.

The limit exists because the size of attention weights is quadratic in the number of tokens.
"""

MAX_FINE_TOKENS = 128
"""Maximum number of tokens for which weights and cosines have 16 bits. Longer texts have 8 bits."""

STRIP_VALUES = 64
"""Number of values of each vector that the page contains."""

WALK_STEPS = 9
"""Maximum number of vectors that show the steps of a layer."""

STEPS_BYTES = 8 << 20
"""Maximum size of the queries, keys, and values of all layers. If larger, they are omitted."""

MAX_OCCURRENCES = 6
"""Maximum number of occurrences of a word that are compared with each other."""


class Explained(Explanation, frozen=True, kw_only=True):
    """Result of `explain`. A notebook shows it as an interactive page."""

    def __repr__(self) -> str:
        return (
            f"<{self.text[:40]!r} in {self.model.name}: {len(self.tokens)} tokens, "
            f"{self.model.layers} layers of {self.model.heads} heads>"
        )

    def _repr_html_(self) -> str:
        return framed(page(self))


@torch.inference_mode()
@check_keywords
def explain(
    model: str | Path | Loaded,
    text: str,
    pair: str | None = None,
    *,
    off: Sequence[Head] = (),
    hide: Sequence[int] = (),
    long: Literal["error", "truncate"] = "error",
    fill: FillMask | None = None,
) -> Explained:
    """Compute the embeddings, attention, states and predictions of a model on a text or pair.

    Args:
        model: Model directory, hub id, or loaded model.
        text: A text.
        pair: A second text.
        off: Attention heads to switch off, as pairs of layer and head.
        hide: Indices (from 0) of words to mask at the same time. The result contains predictions
            for these words, in addition to the predictions for each word masked alone.
        long: What to do with a text that is too long: raise an error or truncate it.
        fill: Fill-mask pipeline of the model. Default: a new pipeline.

    Returns:
        The computed values. A notebook displays them as an interactive page.

    Raises:
        ConfigError: If a head or a word does not exist, all heads of a layer are switched off, or
            words are masked although the model cannot predict masked words.
        DataError: If a text has no words or is too long.
        CheckpointError: If the states are not finite.
    """
    loaded = model if isinstance(model, Loaded) else load(model)
    encoding = read(loaded, text, pair, long)
    full_encoder = loaded.model.transformer
    if off:
        loaded, fill = replace(loaded, model=without_heads(loaded.model, off)), None
    encoder = loaded.model.transformer
    words = words_of(encoding, [text] if pair is None else [text, pair])
    causal = encoder.config.attention.causal
    fill = None if causal else fill or filler(loaded)
    together = hidden(fill, encoding, words, hide)
    batch = Batch.of([encoding]).to(next(encoder.parameters()).device)
    trace = Trace(projections=True)
    encoder(batch, trace)
    states = _states(trace, loaded)
    attention = torch.stack([layer[0] for layer in trace.attention])  # (layers, H, T, T)
    mean = attention.mean(1)
    tokens = _tokens(loaded.tokenizer, encoding, words, causal)
    steps = None if _adds_to_scores(encoder) else _steps(trace, len(encoding))
    return Explained(
        text=text,
        pair=pair,
        truncated=encoding.truncated,
        off=[f"{layer}.{head}" for layer, head in off],
        off_change=_change(states, full_encoder, batch) if off else None,
        model=_shape(loaded, model),
        tokens=tokens,
        words=words,
        embeddings=_embeddings(encoder.embedding, batch),
        attention=_compress(attention, power=2),
        mean=_compress(mean, power=2),
        rollout=_compress(rollout(mean), power=2),
        steps=steps,
        walk=None if steps is None else _walk(encoder, trace),
        patterns=patterns(attention, tokens, words, causal=causal, windows=encoder.config.windows),
        begin=begin(attention, tokens, words),
        rotary=isinstance(encoder.config.positions, RotaryPositions),
        windows=list(encoder.config.windows),
        causal=causal,
        masked=next_words(loaded, states[-1], encoding, words)
        if causal
        else masked(fill, encoding, words),
        hidden=together,
        similarity=_compress(similarity(states), low=-1.0),
        repeats=_repeats(states, words),
        sources={part: source(function) for part, function in SOURCES.items()}
        | ({"masked": source(CausalLM.features)} if causal else {}),
    )


def _states(trace: Trace, loaded: Loaded) -> Tensor:
    """Return the states of the embeddings and of each layer. Shapes: (layers + 1, T, D).

    Raises:
        CheckpointError: If the states are not finite.
    """
    states = torch.stack(trace.states).float()
    if not states.isfinite().all():
        raise CheckpointError(
            f"{loaded.folder}: the hidden states of this text are nan or inf; use a checkpoint "
            "with valid weights"
        )
    return states


def _adds_to_scores(encoder: Transformer) -> bool:
    """Return whether attention scores have other terms than the products of queries and keys."""
    return encoder.relative is not None or encoder.distances is not None


def rollout(mean: Tensor) -> Tensor:
    """Compute the attention rollout: how much each input token contributes to each hidden state.

    The rollout assumes that attention and the residual connection each contribute half of the
    output of a layer.

    Args:
        mean: Attention weights of each layer, averaged over the heads.

    Returns:
        The rollout from each layer to the input. Each row sums to 1.

    Shapes:
        mean: (layers, T, T); returns (layers, T, T).

    Source:
        Abnar and Zuidema 2020, section 3, equation 1.
    """
    residual = torch.eye(mean.shape[-1], device=mean.device)
    layers, below = [], residual
    for layer in mean:
        below = (layer + residual) / 2 @ below
        layers.append(below)
    return torch.stack(layers)


def similarity(states: Tensor) -> Tensor:
    """Compute the cosine of each pair of hidden states of a layer.

    Args:
        states: States of the embeddings and of each layer.

    Shapes:
        states: (layers + 1, T, D); returns (layers + 1, T, T).
    """
    x = F.normalize(states, dim=-1)
    return (x @ x.transpose(1, 2)).clamp(-1, 1)


def _change(states: Tensor, encoder: Transformer, batch: Batch) -> list[list[float]]:
    """Return the cosine of each state with the state that another encoder computes.

    Shapes:
        states: (layers + 1, T, D); returns (layers + 1, T).
    """
    before = Trace(weights=False)
    encoder(batch, before)
    states_before = torch.stack(before.states).float()
    return F.cosine_similarity(states, states_before, dim=-1).tolist()


SOURCES: dict[str, Callable[..., Any]] = {
    "tokens": Tokenizer.encode_batch,
    "embeddings": Embedding.forward,
    "attention": attention_weights,
    "patterns": patterns,
    "rollout": rollout,
    "steps": relations,
    "walk": Block.steps,
    "masked": MaskedLM.forward,
    "states": Transformer.forward,
    "similarity": similarity,
}
"""Functions that compute the parts of the page. The page shows their code."""


def read(
    loaded: Loaded, text: str, pair: str | None, long: Literal["error", "truncate"]
) -> Encoding:
    """Encode a text or pair for the page.

    Args:
        loaded: The model.
        text: A text.
        pair: A second text.
        long: What to do with a text that is too long: raise an error or truncate it.

    Raises:
        DataError: If a text has no words or is too long.
    """
    check_choice("long", long, ("error", "truncate"))
    for name, value in (("text", text), ("pair", pair)):
        if value is not None and not value.strip():
            raise DataError(f"{name}: the text is empty; add at least one word")
    limit = min(loaded.length, MAX_TOKENS)
    encoding = loaded.tokenizer.encode(text, pair, max_length=NO_LIMIT)
    if len(encoding) > limit:
        if long == "error":
            owner = "the model" if loaded.length <= MAX_TOKENS else "a page"
            raise DataError(
                f"{text[:40]!r}…: {len(encoding):,} tokens, but the maximum of {owner} is {limit}; "
                "shorten the text or set --long truncate"
            )
        encoding = loaded.tokenizer.encode(text, pair, max_length=limit, truncate="longest")
    if not any(word is not None for word in encoding.words):
        raise DataError(f"{text[:40]!r}: the text has no tokens; use words of the vocabulary")
    return encoding


def _shape(loaded: Loaded, model: str | Path | Loaded) -> Shape:
    config = loaded.model.config
    # A hub id is a better name than the directory of the model in the cache.
    name = str(model)
    if isinstance(model, Loaded) or Path(name).exists():
        name = loaded.folder.resolve().name
    family = loaded.family.name
    return Shape(name, family, config.layers, config.heads, config.hidden, loaded.length)


def words_of(encoding: Encoding, texts: Sequence[str]) -> list[Word]:
    """Return the words of the texts, with their tokens.

    Args:
        encoding: Tokens of the texts.
        texts: The text, or the text and its pair.
    """
    words = []
    owners = list(zip(encoding.sequence, encoding.words, strict=True))
    for (sequence, word), group in itertools.groupby(range(len(owners)), key=owners.__getitem__):
        if sequence is None or word is None:
            continue
        indices = list(group)
        start, end = encoding.offsets[indices[0], 0], encoding.offsets[indices[-1], 1]
        text = texts[sequence][start:end].strip()
        words.append(Word(text, sequence, indices[0], indices[-1] + 1))
    return words


def _tokens(
    tokenizer: Tokenizer, encoding: Encoding, words: Sequence[Word], causal: bool
) -> list[Token]:
    owners = {i: index for index, word in enumerate(words) for i in range(word.first, word.end)}
    columns = zip(
        # The page looks for a token among the predicted candidates of its mask, so tokens must be
        # spelled in the same way as the candidates: as in the vocabulary.
        (spelled if causal else Tokenizer.pieces)(tokenizer, encoding.ids),
        encoding.ids.tolist(),
        encoding.types.tolist(),
        encoding.offsets.tolist(),
        strict=True,
    )
    return [
        Token(text, token_id, segment, start, end, owners.get(index))
        for index, (text, token_id, segment, (start, end)) in enumerate(columns)
    ]


def _embeddings(embedding: Embedding, batch: Batch) -> Embeddings:
    summed = embedding.added(batch)
    vectors = {**embedding.parts(batch), "sum": summed, "norm": embedding.norm(summed)}
    # A part may have only one vector, which all tokens share, such as the segment embedding.
    parts = _parts({name: rows.expand_as(summed) for name, rows in vectors.items()})
    return Embeddings(summed.shape[-1], parts)


def _compress(layers: Tensor, *, low: float = 0.0, power: int = 1) -> list[Array]:
    """Compress the layers of a tensor. Long texts use fewer bytes per value.

    Shapes:
        layers: (layers, T, T) or (layers, H, T, T).
    """
    kind: Literal["float16", "uint8"] = (
        "float16" if layers.shape[-1] <= MAX_FINE_TOKENS else "uint8"
    )
    return [coded(layer, kind, low=low, power=power) for layer in layers]


def _steps(trace: Trace, tokens: int) -> list[Array] | None:
    def expand(x: Tensor, heads: int) -> Tensor:
        # With grouped-query attention, keys and values have fewer heads than queries.
        return x[:tokens].transpose(0, 1).repeat_interleave(heads // x.shape[1], 0)

    layers = [
        torch.stack([expand(x, projections[0].shape[1]) for x in projections])
        for projections in zip(trace.queries, trace.keys, trace.values, strict=True)
    ]
    if sum(layer.numel() for layer in layers) * 4 > STEPS_BYTES:
        return None
    return [coded(layer, "float32") for layer in layers]


def _walk(encoder: Transformer, trace: Trace) -> list[Walk] | None:
    """Return the steps of each layer, or None if they are too large or there is a convolution."""
    layers, tokens = len(trace.heads), len(trace.states[0])
    values = layers * tokens * (WALK_STEPS * STRIP_VALUES + trace.heads[0][0].numel())
    if 4 * values > STEPS_BYTES or encoder.convolution is not None:
        return None
    walk = []
    for layer, index in enumerate(encoder.config.depths):
        block, heads = encoder.blocks[index], trace.heads[layer]
        assert isinstance(block, Block)
        steps = block.steps(trace.states[layer], heads)
        if encoder.norm is not None and layer == layers - 1:
            steps["final norm"] = encoder.norm(list(steps.values())[-1])
        walk.append(Walk(coded(heads.transpose(0, 1), "float32"), _parts(steps)))
    return walk


def _parts(vectors: Mapping[str, Tensor]) -> list[EmbeddingPart]:
    return [
        EmbeddingPart(
            name, rows.float().norm(dim=-1).tolist(), coded(rows[:, :STRIP_VALUES], "float32")
        )
        for name, rows in vectors.items()
    ]


def _repeats(states: Tensor, words: Sequence[Word]) -> list[Repeat]:
    """Return the words that occur more than once, with their cosines, the longest words first."""
    occurrences: dict[str, list[int]] = {}
    for index, word in enumerate(words):
        if any(map(str.isalnum, word.text)):
            occurrences.setdefault(word.text.casefold(), []).append(index)
    repeats = []
    for text, indices in sorted(occurrences.items(), key=lambda item: (-len(item[0]), item[1])):
        if len(indices) > 1:
            first = indices[:MAX_OCCURRENCES]
            spans = [(words[index].first, words[index].end) for index in first]
            vectors = torch.stack([states[:, a:b].mean(1) for a, b in spans], 1)
            cosines = similarity(vectors).tolist()
            repeats.append(Repeat(text, first, len(indices) - len(first), cosines))
    return repeats
