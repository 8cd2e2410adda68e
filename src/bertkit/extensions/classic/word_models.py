"""Formats of models whose input is words: ELMo, word vectors, and BiLSTMs on frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.config_json import read_config
from bertkit.checkpoint.directory import Stored, load
from bertkit.checkpoint.formats import LoadSettings, ModelFormat, format_of
from bertkit.checkpoint.pooling_files import read_object
from bertkit.checkpoint.weights import read_tensors
from bertkit.data.word_columns import words_of
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.classic.elmo_files import SOFTMAX, load_elmo, load_softmax
from bertkit.extensions.classic.families.lstm import WORD_FEATURES
from bertkit.extensions.classic.fill_gap import FillGap
from bertkit.extensions.classic.frozen_features import BASE, FrozenFeatures, TransformerFeatures
from bertkit.extensions.classic.word_features import LENGTH, WordFeatureEncoder, WordFeatures
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.classic.words import Words, whole_words
from bertkit.nn.precision import check_cpu
from bertkit.pipelines.answering import task_pipeline
from bertkit.pipelines.base import inference_device
from bertkit.pipelines.frozen_words import positions_of
from bertkit.pipelines.model_info import info
from bertkit.pipelines.supported import PROBE, SupportedPipelines
from bertkit.pipelines.task import TaskPipeline
from bertkit.tasks import task_name_of
from bertkit.tasks.inference import Work
from bertkit.tasks.task import Feature
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long

PROBE_RANGE = (2, 7)
"""Range of characters of a word in the text `PROBE`."""


class WordVectorsFormat(ModelFormat):
    """Format of a file of word vectors (GloVe or word2vec text)."""

    noun = "a file"
    remedy = "pass the directory of a model"

    def trainable(self) -> Stored:
        return new_features(self.path)

    def load_words(self, settings: LoadSettings) -> FrozenVectors:
        check_cpu(settings.device, "a file of word vectors")
        return FrozenVectors(Vectors.load(self.path))

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        vectors = Vectors.load(self.path)
        return SupportedPipelines(
            family="vectors",
            length=1,
            dimension=vectors.table.shape[1],
            frozen=FrozenVectors(vectors),
        )


class ElmoFormat(ModelFormat):
    """Format of an ELMo directory, which contains options.json and weights.hdf5."""

    noun = "an ELMo"
    remedy = "use bertkit.pipeline('words', folder), or `bertkit finetune tag` or `classify`"

    def trainable(self) -> Stored:
        return new_features(self.path)

    def load_frozen(self, settings: LoadSettings) -> FrozenElmo:
        self._check(settings)
        return FrozenElmo(Words(self.path))

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        words = Words(self.path, length=LENGTH)
        frozen = FrozenElmo(words)
        states = StatePipeline(frozen)
        has_softmax = (self.path / SOFTMAX).exists()
        return SupportedPipelines(
            family="elmo",
            length=LENGTH,
            dimension=words.model.config.hidden,
            pipelines={"fill-gap": FillGap(self.path, words)} if has_softmax else {},
            networks=[words.model],
            frozen=frozen,
            probe=(states, states.prepare([(PROBE, PROBE_RANGE)], long="error")),
        )

    def info(self) -> dict[str, Any]:
        model = load_elmo(self.path)
        groups = {"words": model.words, "lstm": model.directions}
        counts = {name: sum(p.numel() for p in m.parameters()) for name, m in groups.items()}
        has_softmax = (self.path / SOFTMAX).exists()
        return {
            "folder": str(self.path),
            "family": "elmo",
            "shape": msgspec.to_builtins(model.config),
            "parameters": {**counts, "all": sum(counts.values())},
            "words told": len(load_softmax(self.path, model.config).words) if has_softmax else None,
            "task": None,
            "labels": [],
            "mixture": None,
        }

    def _check(self, settings: LoadSettings) -> None:
        if settings.precision != "fp32":
            raise ConfigError(f"precision: {self.noun} supports only fp32; remove precision")
        check_cpu(settings.device, self.noun)


class WordFeaturesFormat(ModelFormat):
    """Format of a directory with a BiLSTM on frozen features, and the files of the frozen model.

    Args:
        path: The directory or, if `layers` is set, the frozen model for a new BiLSTM.
        layers: Value of the setting `features` for a new BiLSTM.
    """

    noun = "a model on frozen features"
    remedy = "use `bertkit predict`"

    def __init__(self, path: Path, layers: str | None = None) -> None:
        super().__init__(path)
        self.layers = layers

    def stored(self) -> Stored:
        return stored_features(self.path)

    def trainable(self) -> Stored:
        if self.layers is None and "architectures" in read_object(self.path / "config.json"):
            return self.stored()
        return new_features(self.path, self.layers)

    def load_task(self, settings: LoadSettings) -> TaskPipeline[Any]:
        device = inference_device(settings.device, settings.precision)
        return task_pipeline(load(self.path), replace(settings, device=device))

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        answer = self.load_task(settings)
        return SupportedPipelines(
            family=answer.loaded.family.name,
            length=answer.loaded.length,
            dimension=answer.loaded.model.config.hidden,
            labels=answer.loaded.labels,
            pipelines={answer.task.serving.route.strip("/"): answer},
            networks=[answer.engine.model],
        )

    def info(self) -> dict[str, Any]:
        loaded = load(self.path)
        encoder = loaded.model.encoder
        assert isinstance(encoder, WordFeatureEncoder)
        task = task_name_of(loaded.settings, loaded.model.heads)
        return {**info(loaded), "task": task, "mixture": encoder.mixture()}


def load_features(path: Path) -> FrozenFeatures:
    """Load the frozen model in a directory, or a file of word vectors, to compute features.

    Raises:
        CheckpointError: If the directory contains no Transformer, ELMo, or word vectors.
    """
    base = path / BASE if (path / BASE).exists() else path
    if format_of(base) in ("transformer", "sentence-transformers"):
        return TransformerFeatures(load(base, heads=()))
    return WordFeatures.load(path)


def stored_features(path: Path, layers: str | None = None) -> Stored:
    """Return the settings, weights and tokenizer of a BiLSTM on frozen features.

    If the directory contains only a frozen model, the BiLSTM is new and has no weights.

    Args:
        path: Directory of the BiLSTM, directory of a frozen model, or file of word vectors.
        layers: Value of the setting `features`. Default: the value in the directory.

    Raises:
        ConfigError: If `layers` is set, but there are only word vectors.
    """
    features = load_features(path)
    if layers is not None and not features.hidden:
        raise ConfigError(
            f"features: {path} contains only word vectors, which have no layers; remove features"
        )
    settings: dict[str, Any] = {"model_type": WORD_FEATURES.name}
    if format_of(path) == WORD_FEATURES.name:
        settings = read_object(path / "config.json")
    if layers is not None:
        settings["features"] = layers
    settings["max_position_embeddings"] = features.max_positions
    return Stored(
        path,
        settings,
        partial(read_tensors, path),
        partial(features.read_tokenizer, str(path)),
        length=None if "architectures" in settings else features.length,
        family=WORD_FEATURES,
        build=partial(WordFeatureEncoder, features=features),
    )


def new_features(path: Path, layers: str | None = None) -> Stored:
    """Return the settings, weights and tokenizer of a new BiLSTM on frozen features.

    Args:
        path: Directory of a frozen model, or file of word vectors.
        layers: Value of the setting `features`. Default: the value in the directory.
    """
    stored = stored_features(path, layers)
    assert stored.build is not None
    encoder = stored.build(read_config(path, stored.settings, WORD_FEATURES)[1])
    weights = {f"encoder.{name}": weight for name, weight in encoder.state_dict().items()}
    return replace(stored, read_tensors=lambda: weights)


class FrozenVectors:
    """Static word vectors as a frozen model of words.

    The ids of an encoding are row numbers in the table of vectors.
    """

    sees, layers, whole_words = "the word only", 0, True

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors

    def read(
        self, texts: Sequence[str], ranges: Sequence[tuple[int, int]], *, long: Long = "truncate"
    ) -> list[Feature]:
        rows = [
            self.vectors.row(text[start:end])
            for text, (start, end) in zip(texts, ranges, strict=True)
        ]
        ids = [np.array([] if row is None else [row], np.int64) for row in rows]
        return [
            Feature(Encoding.of_ids(row), index, np.arange(len(row)))
            for index, row in enumerate(ids)
        ]

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        table = self.vectors.table
        states = np.full((1, len(features), table.shape[1]), np.nan, np.float32)
        for index, feature in enumerate(features):
            if len(feature.encoding):
                states[0, index] = table[feature.encoding.ids[0]]
        return states


class FrozenElmo:
    """ELMo as a frozen model of words. The ids of an encoding are character ids."""

    sees, whole_words = "each side separately", True

    def __init__(self, words: Words) -> None:
        self.words, self.layers = words, words.model.config.layers

    def read(
        self, texts: Sequence[str], ranges: Sequence[tuple[int, int]], *, long: Long = "truncate"
    ) -> list[Feature]:
        features: list[Feature] = []
        for text, (start, end), words in zip(texts, ranges, self.words.split(texts), strict=True):
            spans = np.array(words_of(text))
            indices = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start))
            if not len(indices):
                raise DataError(f"{text[:60]!r}: no word at {start}:{end}; remove the text")
            encoding = whole_words(self.words.ids(words))
            features.append(Feature(encoding, len(features), indices + 1))
        return features

    def states(self, features: Sequence[Feature]) -> NDArray[np.float32]:
        config = self.words.model.config
        states = np.empty((config.layers + 1, len(features), config.hidden), np.float32)
        for index, rows in self.words.stream([feature.encoding.ids for feature in features]):
            states[:, index] = rows[:, positions_of(features[index])].mean(1)
        return states


class StatePipeline:
    """Pipeline that computes the last-layer state of a word in each text.

    An item is a text with the range of characters of the word.
    """

    policies: tuple[Long, ...] = ("error",)

    def __init__(self, frozen: FrozenElmo) -> None:
        self.frozen = frozen

    def prepare(self, items: Sequence[tuple[str, tuple[int, int]]], *, long: Long) -> list[Work]:
        """Encode texts. For the errors, see `FrozenElmo.read`."""
        texts, ranges = zip(*items, strict=True)
        return [Work([feature]) for feature in self.frozen.read(texts, ranges, long=long)]

    def run(self, works: Sequence[Work]) -> NDArray[np.float32]:
        """Compute the state of the word in each text.

        Shapes:
            Returns (S, D).
        """
        states: NDArray[np.float32] = self.frozen.states([work.features[0] for work in works])[-1]
        return states
