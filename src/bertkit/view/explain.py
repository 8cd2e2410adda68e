"""What a model computes on one text, as one document: tokens, attention, candidates, layers.

Axis letters are those of `batch.py`; here T is the text's tokens, specials included.
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
from bertkit.errors import CheckpointError, DataError, refuse_unknown
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
"""Tokens of a text at most, whatever the model reads: attention grows with their square."""

MAX_FINE_TOKENS = 128
"""Up to this many tokens weights and cosines travel in 16 bits each, above in 8."""

STRIP_VALUES = 64
"""Numbers of each vector that are shown."""

WALK_STEPS = 9
"""Vectors of a layer's steps at most."""

STEPS_BYTES = 8 << 20
"""Queries, keys and values of all layers are left out where they would be more."""

MAX_OCCURRENCES = 6
"""The first so many places of a word that recurs are compared."""


class Explained(Explanation, frozen=True, kw_only=True):
    """What a model computes on a text; a notebook shows its page."""

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
        off: Attention heads that are switched off, as pairs of layer and head.
        hide: Indices of words, from 0, that are masked together in addition to one by one.
        long: Whether a text that is too long is an error or is truncated.
        fill: Pipeline of the model that fills masks. Default: a new one.

    Raises:
        ConfigError: If a head or a word does not exist, all heads of a layer are switched off, or
            the model cannot fill the words.
        DataError: If a text has no words or is too long.
        CheckpointError: If the states are not finite.
    """
    loaded = model if isinstance(model, Loaded) else load(model)
    encoding = read(loaded, text, pair, long)
    whole = loaded.model.transformer
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
        off_change=_change(states, whole, batch) if off else None,
        model=_shape(loaded, model),
        tokens=tokens,
        words=words,
        embeddings=_embeddings(encoder.embedding, batch),
        attention=_light(attention, power=2),
        mean=_light(mean, power=2),
        rollout=_light(rollout(mean), power=2),
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
        similarity=_light(similarity(states), low=-1.0),
        repeats=_repeats(states, words),
        sources={part: source(function) for part, function in SOURCES.items()}
        | ({"masked": source(CausalLM.features)} if causal else {}),
    )


def _states(trace: Trace, loaded: Loaded) -> Tensor:
    """Return the states of the embeddings and of each layer. Shapes: (layers + 1, T, D).

    Raises:
        CheckpointError: If they are not finite.
    """
    states = torch.stack(trace.states).float()
    if not states.isfinite().all():
        raise CheckpointError(
            f"{loaded.folder}: its states of this text are not numbers (nan or inf); the weights "
            "are damaged, take another checkpoint"
        )
    return states


def _adds_to_scores(encoder: Transformer) -> bool:
    """Whether scores are more than products of queries and keys."""
    return encoder.relative is not None or encoder.distances is not None


def rollout(mean: Tensor) -> Tensor:
    """How much each token of a layer has of each piece, along all ways down through the layers.

    A layer hands on half by attention and half past it, by the residual connection. Shapes: mean
    attention (layers, T, T) -> the same, rows sum to one.
    Source: Abnar and Zuidema 2020, section 3, equation 1.
    """
    past = torch.eye(mean.shape[-1], device=mean.device)
    layers, below = [], past
    for layer in mean:
        below = (layer + past) / 2 @ below
        layers.append(below)
    return torch.stack(layers)


def similarity(states: Tensor) -> Tensor:
    """The cosine of any two states of a layer. Shapes: (layers + 1, T, D) -> (layers + 1, T, T)."""
    x = F.normalize(states, dim=-1)
    return (x @ x.transpose(1, 2)).clamp(-1, 1)


def _change(states: Tensor, whole: Transformer, batch: Batch) -> list[list[float]]:
    """Return the cosine of each state with that of the whole model. Shapes: (layers + 1, T)."""
    before = Trace(weights=False)
    whole(batch, before)
    others = torch.stack(before.states).float()
    return F.cosine_similarity(states, others, dim=-1).tolist()


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
"""What computes each part of the page."""


def read(
    loaded: Loaded, text: str, pair: str | None, long: Literal["error", "truncate"]
) -> Encoding:
    """The tokens that are shown. Raises: DataError as `explain` does."""
    refuse_unknown("long", long, ("error", "truncate"))
    for name, given in (("text", text), ("pair", pair)):
        if given is not None and not given.strip():
            raise DataError(f"{name}: is empty; give it a word at least")
    limit = min(loaded.length, MAX_TOKENS)
    encoding = loaded.tokenizer.encode(text, pair, max_length=NO_LIMIT)
    if len(encoding) > limit:
        if long == "error":
            who = "the model reads" if loaded.length <= MAX_TOKENS else "a page shows"
            raise DataError(
                f"{text[:40]!r}…: {len(encoding):,} tokens, and {who} {limit}; shorten it, or cut "
                "it (--long truncate)"
            )
        encoding = loaded.tokenizer.encode(text, pair, max_length=limit, truncate="longest")
    if not any(word is not None for word in encoding.words):
        raise DataError(f"{text[:40]!r}: the vocabulary has no piece for it; give it other words")
    return encoding


def _shape(loaded: Loaded, model: str | Path | Loaded) -> Shape:
    config = loaded.model.config
    named = str(model)  # a hub id says more than the folder it was fetched to
    local = isinstance(model, Loaded) or Path(named).exists()
    name = loaded.folder.resolve().name if local else named
    family = loaded.family.name
    return Shape(name, family, config.layers, config.heads, config.hidden, loaded.length)


def words_of(encoding: Encoding, texts: Sequence[str]) -> list[Word]:
    """The words of the texts, with their tokens."""
    words = []
    owner = list(zip(encoding.sequence, encoding.words, strict=True))
    for (sequence, word), group in itertools.groupby(range(len(owner)), key=owner.__getitem__):
        if sequence is None or word is None:
            continue
        places = list(group)
        start, end = encoding.offsets[places[0], 0], encoding.offsets[places[-1], 1]
        spelled = texts[sequence][start:end].strip()
        words.append(Word(spelled, sequence, places[0], places[-1] + 1))
    return words


def _tokens(
    tokenizer: Tokenizer, encoding: Encoding, words: Sequence[Word], causal: bool
) -> list[Token]:
    owner = {i: place for place, word in enumerate(words) for i in range(word.first, word.end)}
    columns = zip(
        # a mask's candidates are pieces, and a token must be told among them
        (spelled if causal else Tokenizer.pieces)(tokenizer, encoding.ids),
        encoding.ids.tolist(),
        encoding.types.tolist(),
        encoding.offsets.tolist(),
        strict=True,
    )
    return [
        Token(piece, number, segment, start, end, owner.get(place))
        for place, (piece, number, segment, (start, end)) in enumerate(columns)
    ]


def _embeddings(embedding: Embedding, batch: Batch) -> Embeddings:
    summed = embedding.added(batch)
    vectors = {**embedding.parts(batch), "sum": summed, "norm": embedding.norm(summed)}
    # a segment's vector may be one for all
    parts = _parts({name: rows.expand_as(summed) for name, rows in vectors.items()})
    return Embeddings(summed.shape[-1], parts)


def _light(layers: Tensor, *, low: float = 0.0, power: int = 1) -> list[Array]:
    """The layers (T, T) or (H, T, T), in fewer bytes the longer the text."""
    kind: Literal["float16", "uint8"] = (
        "float16" if layers.shape[-1] <= MAX_FINE_TOKENS else "uint8"
    )
    return [coded(layer, kind, low=low, power=power) for layer in layers]


def _steps(trace: Trace, tokens: int) -> list[Array] | None:
    def heads(x: Tensor, count: int) -> Tensor:  # of keys and values there may be fewer
        return x[:tokens].transpose(0, 1).repeat_interleave(count // x.shape[1], 0)

    layers = [
        torch.stack([heads(x, of_layer[0].shape[1]) for x in of_layer])
        for of_layer in zip(trace.queries, trace.keys, trace.values, strict=True)
    ]
    if sum(layer.numel() for layer in layers) * 4 > STEPS_BYTES:
        return None
    return [coded(layer, "float32") for layer in layers]


def _walk(encoder: Transformer, trace: Trace) -> list[Walk] | None:
    """Each layer step by step; None where the strips of all would be too many, or something else
    than layers stands between states.
    """
    layers, tokens = len(trace.heads), len(trace.states[0])
    values = layers * tokens * (WALK_STEPS * STRIP_VALUES + trace.heads[0][0].numel())
    if 4 * values > STEPS_BYTES or encoder.convolution is not None:
        return None
    walk = []
    for layer, place in enumerate(encoder.config.depths):
        block, heads = encoder.blocks[place], trace.heads[layer]
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
    """The words that recur, the longest first: they mean most."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        if any(map(str.isalnum, word.text)):
            places.setdefault(word.text.casefold(), []).append(place)
    repeats = []
    for text, every in sorted(places.items(), key=lambda item: (-len(item[0]), item[1])):
        if len(every) > 1:
            first = every[:MAX_OCCURRENCES]
            spans = [(words[place].first, words[place].end) for place in first]
            vectors = torch.stack([states[:, a:b].mean(1) for a, b in spans], 1)
            cosines = similarity(vectors).tolist()
            repeats.append(Repeat(text, first, len(every) - len(first), cosines))
    return repeats
