"""The states that a frozen model has of words: of their pieces, or of whole words (ELMo)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.checkpoint import gguf
from bertkit.checkpoint.directory import Loaded, load
from bertkit.checkpoint.elmo import is_elmo
from bertkit.checkpoint.hub import resolve
from bertkit.console import say
from bertkit.data.tagged_text import TaggedText
from bertkit.data.word_columns import words_of
from bertkit.engine.engine import Engine
from bertkit.engine.word_states import layer_states, pieces_of, word_states
from bertkit.errors import DataError
from bertkit.extensions.classic.word_pairs import Range
from bertkit.nn.precision import Precision, check_cpu
from bertkit.pipelines import inference_device, pipeline
from bertkit.pipelines.elmo_task import word_features
from bertkit.pipelines.words import Words, whole_words
from bertkit.progress import progress
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import Feature
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, encode
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.word_vectors import Vectors


class FrozenWords(Protocol):
    """What has states of words, and of which nothing is learned; layer 0 is its embedding."""

    sees: str
    """What of its text the state of a word depends on."""

    @property
    def layers(self) -> int: ...

    def read(
        self, texts: Sequence[str], ranges: Sequence[Range], *, long: Long = "truncate"
    ) -> list[Feature]:
        """What it reads of each text, and at which places one word of it stands.

        A word without a vector has no place. Raises: DataError for a word that the model does not
        read, or a text that is too long, as `long` says.
        """

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        """Those of the word of each, the mean where it has several parts.

        One without a place has no number. Shapes: (layers + 1, S, D).
        """


class Frozen(FrozenWords, Protocol):
    """A model that reads texts, and of which nothing is learned."""

    def features(self, task: Tag, examples: Sequence[TaggedText], labelled: bool) -> list[Feature]:
        """What it reads of the examples, and at which places a tagger answers."""

    def encode(self, features: Sequence[Feature], layers: Sequence[int]) -> Tensor:
        """The states of these layers at the places of all features, one after another, in fp16.

        A feature without places gives its first token. How much memory they take is said before.
        Shapes: (J, W, D).
        """


def open_frozen(
    model: str | Path | Loaded, precision: Precision = "fp32", device: str = "auto"
) -> Frozen:
    """An opened model, or the one of a folder or hub id. Raises: CheckpointError."""
    if isinstance(model, Loaded):
        return FrozenEncoder(model, precision, inference_device(device, model=model))
    folder = resolve(model)
    if is_elmo(folder):
        return FrozenElmo(pipeline("words", folder, precision=precision, device=device))
    device = inference_device(device)
    return FrozenEncoder(load(folder, heads=()), precision, device)


def open_words(
    model: str | Path | Loaded, precision: Precision = "fp32", device: str = "auto"
) -> FrozenWords:
    """The same, or a file of word vectors. Raises: CheckpointError; DataError naming the line."""
    if not isinstance(model, Loaded) and is_vectors(model):
        check_cpu(device, "a file of word vectors")
        return FrozenVectors(Vectors.load(model))
    return open_frozen(model, precision, device)


def is_vectors(model: str | Path) -> bool:
    """Whether this names a file of word vectors, and no model."""
    return Path(model).is_file() and Path(model).suffix != gguf.SUFFIX


class FrozenVectors:
    """Word vectors: a word has one, whatever its text. The ids of an encoding are their rows."""

    sees, layers = "nothing of its text", 0

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors

    def read(
        self, texts: Sequence[str], ranges: Sequence[Range], *, long: Long = "truncate"
    ) -> list[Feature]:
        rows = [
            self.vectors.row(text[start:end])
            for text, (start, end) in zip(texts, ranges, strict=True)
        ]
        ids = [np.array([] if row is None else [row], np.int64) for row in rows]
        return [
            Feature(Encoding.of_ids(row), place, np.arange(len(row)))
            for place, row in enumerate(ids)
        ]

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        table = self.vectors.table
        states = np.full((1, len(features), table.shape[1]), np.nan, np.float32)
        for place, feature in enumerate(features):
            if len(feature.encoding):
                states[0, place] = table[feature.encoding.ids[0]]
        return states


class FrozenEncoder:
    """A Transformer, which reads pieces of words.

    Raises: ConfigError for a model of LSTMs.
    """

    def __init__(
        self, loaded: Loaded, engine: Engine | Precision, device: str | None = None
    ) -> None:
        _ = loaded.model.transformer
        self.loaded = loaded
        self.engine = (
            engine
            if isinstance(engine, Engine)
            else Engine(loaded.model, precision=engine, device=device)
        )
        self.sees = "what stands before it" if loaded.model.causal else "both sides at once"

    @property
    def layers(self) -> int:
        return self.loaded.model.config.layers

    def read(
        self, texts: Sequence[str], ranges: Sequence[Range], *, long: Long = "truncate"
    ) -> list[Feature]:
        tokenizer, length = self.loaded.tokenizer, self.loaded.length
        before: tuple[int, ...] = ()
        if self.loaded.model.causal:
            texts, ranges = _spaced(tokenizer, texts, ranges)
            before = () if tokenizer.added[0] else tokenizer.ends
        encodings, _ = encode(tokenizer, texts, length=length - len(before), long=long)
        if before:  # the state of a first token is unlike all others
            encodings = [one.behind(before) for one in encodings]
        pieces = [pieces_of(*one) for one in zip(encodings, ranges, texts, strict=True)]
        return [
            Feature(encoding, place, own)
            for place, (encoding, own) in enumerate(zip(encodings, pieces, strict=True))
        ]

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        encodings = [feature.encoding for feature in features]
        return word_states(self.engine, encodings, [places_of(feature) for feature in features])

    def features(self, task: Tag, examples: Sequence[TaggedText], labelled: bool) -> list[Feature]:
        tokenizer, length = self.loaded.tokenizer, self.loaded.length
        return task.features(examples, tokenizer, length, long="window", labelled=labelled)

    def encode(self, features: Sequence[Feature], layers: Sequence[int]) -> Tensor:
        wanted = [places_of(feature) for feature in features]
        encodings = [feature.encoding for feature in features]
        read = self.engine.stream(encodings, layer_states(layers), wanted)
        shape = len(layers), self.loaded.model.config.hidden
        return _stored(read, [len(places) for places in wanted], *shape)


class FrozenElmo:
    """An ELMo, which reads whole words: the ids of an encoding are their characters."""

    sees = "both sides, each by itself"

    def __init__(self, words: Words) -> None:
        self.words = words

    @property
    def layers(self) -> int:
        return self.words.model.config.layers

    def read(
        self, texts: Sequence[str], ranges: Sequence[Range], *, long: Long = "truncate"
    ) -> list[Feature]:
        features: list[Feature] = []
        for text, (start, end), words in zip(texts, ranges, self.words.split(texts), strict=True):
            spans = np.array(words_of(text))
            places = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start))
            if not len(places):
                raise DataError(f"{text[:60]!r}: no word stands at {start}:{end}; leave it out")
            encoding = whole_words(self.words.ids(words))
            features.append(Feature(encoding, len(features), places + 1))
        return features

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        config = self.words.model.config
        states = np.empty((config.layers + 1, len(features), config.hidden), np.float32)
        for place, rows in self.words.stream([feature.encoding.ids for feature in features]):
            states[:, place] = rows[:, places_of(features[place])].mean(1)
        return states

    def features(self, task: Tag, examples: Sequence[TaggedText], labelled: bool) -> list[Feature]:
        return word_features(self.words, task, examples, labelled=labelled)

    def encode(self, features: Sequence[Feature], layers: Sequence[int]) -> Tensor:
        wanted = [places_of(feature) for feature in features]
        read = self.words.stream([feature.encoding.ids for feature in features])
        chosen = list(layers)
        rows = ((place, states[chosen][:, wanted[place]].transpose(0, 1)) for place, states in read)
        return _stored(rows, [len(p) for p in wanted], len(chosen), self.words.model.config.hidden)


def _spaced(
    tokenizer: Tokenizer, texts: Sequence[str], ranges: Sequence[Range]
) -> tuple[Sequence[str], Sequence[Range]]:
    """The texts behind a space, where this costs no token: a text's first word then has the pieces
    that it has elsewhere (byte-level BPE)."""
    alone, spaced = tokenizer.ids(["a", " a"])
    if len(spaced) > len(alone):
        return texts, ranges
    return [f" {text}" for text in texts], [(start + 1, end + 1) for start, end in ranges]


def places_of(feature: Feature) -> NDArray[np.int64]:
    """The places of a feature whose states are kept: one at least."""
    assert feature.token_indices is not None
    return feature.token_indices if len(feature.token_indices) else np.zeros(1, np.int64)


def _stored(
    read: Iterator[tuple[int, Tensor]], counts: Sequence[int], layers: int, width: int
) -> Tensor:
    """Rows (W, J, D) of each feature, which come in any order, as one (J, W, D) in fp16."""
    starts = np.cumsum([0, *counts])
    shape = layers, int(starts[-1]), width
    say(
        f"{shape[1]:,} words × {shape[0]} layers × {shape[2]}: "
        f"{2 * math.prod(shape) / 1e6:,.0f} MB of states"
    )
    states = torch.empty(shape, dtype=torch.float16)
    with progress() as bar:
        shown = bar.add_task("reading", total=len(counts), note="")
        for place, rows in read:
            states[:, starts[place] : starts[place + 1]] = rows.half().transpose(0, 1)
            bar.update(shown, advance=1)
    return states
