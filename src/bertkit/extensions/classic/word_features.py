"""BiLSTM on frozen features: hidden states of a Transformer or an ELMo, and word vectors.

Sources: Peters et al. 2018, section 3.2; Conneau et al. 2017 (InferSent), section 3; Devlin et al.
2019, section 5.3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import models, processors
from torch import Tensor, nn

from bertkit.batch import Batch, by_length
from bertkit.console import say
from bertkit.engine.engine import MAX_BATCH_TOKENS
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.classic.character_ids import sentence_ids
from bertkit.extensions.classic.elmo import Elmo
from bertkit.extensions.classic.elmo_files import OPTIONS, WEIGHTS, load_elmo, only_file
from bertkit.extensions.classic.frozen_features import FrozenFeatures, LayerChoice
from bertkit.extensions.classic.recurrent import ScalarMix, run_packed
from bertkit.extensions.classic.recurrent_config import WordFeaturesConfig
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.models.config import EncoderConfig
from bertkit.models.encoder import FeatureEncoder
from bertkit.models.heads import CRFTagger, Tagger
from bertkit.nn.dropout import Dropout
from bertkit.progress import progress
from bertkit.storage import link_or_copy, sha256
from bertkit.tasks.task import Feature
from bertkit.text.encoding import Encoding, Text
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.word_splitting import word_splitter

LENGTH = 512
"""Default maximum number of tokens in a text, including `BEGIN` and `END`. The models themselves
have no maximum."""

VECTORS = ("vectors.txt", "vectors.txt.gz")
"""Possible names of the file that contains the word vectors of a model directory."""

BEGIN, END = "<S>", "</S>"
"""Tokens before and after each text."""


class WordFeatures(FrozenFeatures):
    """Frozen features of words: the states of an ELMo, word vectors, or both.

    Args:
        elmo: The ELMo, if any.
        vectors: The word vectors, if any.
        files: Paths of the files of both, by their names in a model directory.
    """

    def __init__(
        self,
        elmo: Elmo | None,
        vectors: Vectors | None = None,
        files: dict[str, Path] | None = None,
    ) -> None:
        self.elmo, self.vectors, self.files = elmo, vectors, files or {}
        self.num_layers = 0 if elmo is None else elmo.config.layers
        self.hidden = 0 if elmo is None else elmo.config.hidden
        self.characters = 0 if elmo is None else elmo.config.char_cnn.max_characters_per_token
        self.dimensions = 0 if vectors is None else vectors.table.shape[1]
        self.scale = 1.0 if vectors is None else vectors.root_mean_square

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the ELMo and the word vectors in a directory, or a single file of word vectors.

        Raises:
            CheckpointError: If the directory contains neither an ELMo nor word vectors.
        """
        if not path.is_dir():
            return cls(None, Vectors.load(path), {VECTORS[path.suffix == ".gz"]: path})
        names = [name for name in VECTORS if (path / name).exists()]
        files = {name: path / name for name in names[:1]}
        vectors = [Vectors.load(file) for file in files.values()]
        elmo = None
        if any(path.glob(OPTIONS)):
            elmo = load_elmo(path)
            files |= {p.removeprefix("*"): only_file(path, p) for p in (OPTIONS, WEIGHTS)}
        if not files:
            raise CheckpointError(
                f"{path}: contains no Transformer, ELMo, or word vectors to compute features with; "
                "use a model directory with all of its weights"
            )
        return cls(elmo, vectors[0] if vectors else None, files)

    def read_tokenizer(self, source: str) -> Tokenizer:
        return WordTokenizer(self, source)

    def ids(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Return the character ids of each word in a text, and its row in the table of vectors.

        Row numbers are increased by 1. The value 0 means that the word has no vector.

        Args:
            words: The words of the text, without `BEGIN` and `END`.

        Shapes:
            returns: (W + 2, characters + 1). Without an ELMo or word vectors, its columns are
                missing.
        """
        columns = []
        if self.elmo is not None:
            columns.append(sentence_ids(words, self.characters))
        if self.vectors is not None:
            rows = [self.vectors.row(word) for word in words]
            indices = [0 if row is None else row + 1 for row in rows]
            columns.append(np.array([0, *indices, 0], np.int64)[:, None])
        return np.concatenate(columns, 1)

    @torch.no_grad()
    def compute(self, batch: Batch, choice: LayerChoice, device: torch.device) -> Tensor:
        """Compute the features on the CPU. The ELMo encodes the two texts of a pair separately."""
        ids, parts = batch.ids.cpu(), []
        if self.elmo is not None:
            states, _ = self.elmo(ids[:, : self.characters], text_lengths(batch))
            parts.append(choice.select(states))
        if self.vectors is not None:
            rows = ids[:, -1].numpy()
            vectors = self.vectors.table[rows - 1] / np.float32(self.scale)
            vectors[rows == 0] = 0.0
            parts.append(torch.from_numpy(vectors))
        return torch.cat(parts, 1).half()


def text_lengths(batch: Batch) -> list[int]:
    """Return the number of tokens in each text of a batch. A pair counts as two texts."""
    texts = 2 * batch.layout.sequence_ids + batch.types
    lengths: list[int] = texts.unique_consecutive(return_counts=True)[1].tolist()
    return lengths


class WordTokenizer(Tokenizer):
    """Tokenizer that splits texts into words, and returns the input of `WordFeatures` as ids.

    Shapes:
        ids of an encoding: (T, C).
    """

    def __init__(self, features: WordFeatures, source: str = "words") -> None:
        # A Unigram model keeps the text of words that are not in its vocabulary.
        core = tokenizers.Tokenizer(
            models.Unigram([("[word]", 0.0), (BEGIN, 0.0), (END, 0.0)], unk_id=0)
        )
        core.pre_tokenizer = word_splitter()
        core.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}",
            pair=f"{BEGIN} $A {END} {BEGIN}:1 $B:1 {END}:1",
            special_tokens=[(BEGIN, 1), (END, 2)],
        )
        super().__init__(core, {"model_max_length": LENGTH}, source)
        self.features = features

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the rules that split texts into words, and of the files of the features."""
        hashes = [sha256(file) for _, file in sorted(self.features.files.items())]
        return hashlib.sha256("".join([super().fingerprint, *hashes]).encode()).hexdigest()

    def _encoding(
        self,
        raw: tokenizers.Encoding,
        prompt: int,
        words: Sequence[Text] | None,
        kept: NDArray[np.intp] | None = None,
    ) -> Encoding:
        encoding = super()._encoding(raw, prompt, words, kept)
        tokens = np.array(raw.tokens, object)[slice(None) if kept is None else kept]
        ends = np.flatnonzero(encoding.ids == 2) + 1
        texts = np.split(tokens, ends[:-1])
        ids = np.concatenate([self.features.ids(text[1:-1].tolist()) for text in texts])
        return replace(encoding, ids=ids)


class LayerMix(nn.Module):
    """Module that standardizes hidden states, and can sum them with learned weights.

    The layers of an ELMo differ in scale and have a large common mean. Without standardization, a
    BiLSTM requires more training steps.

    Args:
        parts: Number of hidden states per token.
        hidden: Size of a hidden state.
        learned: Whether the hidden states are summed with learned weights. Otherwise, they remain
            concatenated.

    Shapes:
        states: (N, parts · hidden).
        returns: (N, hidden), or (N, parts · hidden) if not `learned`.
    """

    def __init__(self, parts: int, hidden: int, *, learned: bool = True) -> None:
        super().__init__()
        self.parts = parts
        self.mean = nn.Parameter(torch.zeros(parts * hidden), requires_grad=False)
        self.deviation = nn.Parameter(torch.zeros(parts * hidden), requires_grad=False)
        self.mix = ScalarMix(parts) if learned else None

    def forward(self, states: Tensor) -> Tensor:
        states = (states.float() - self.mean) / self.deviation
        if self.mix is None:
            return states
        layers = states.to(self.mix.scores.dtype).unflatten(1, (self.parts, -1))
        out: Tensor = self.mix(layers.transpose(0, 1))
        return out

    def fit(self, texts: Sequence[NDArray[Any]]) -> None:
        """Compute the mean and standard deviation for the standardization from texts.

        Args:
            texts: Features of the tokens in each text.
        """
        count, width = sum(map(len, texts)), len(self.mean)
        parts = [text[:, :width] for text in texts]
        mean = sum(part.sum(0, dtype=np.float64) for part in parts) / count
        squares = sum(np.square(part - mean).sum(0) for part in parts) / count
        self.mean.copy_(torch.from_numpy(mean))
        self.deviation.copy_(torch.from_numpy(np.sqrt(squares)).clamp_min(1e-3))


class WordFeatureEncoder(FeatureEncoder):
    """BiLSTM on frozen features. It encodes each text of a pair separately.

    Args:
        config: Settings of the BiLSTM.
        features: Frozen model that computes the features.
    """

    def __init__(self, config: WordFeaturesConfig, features: FrozenFeatures) -> None:
        super().__init__()
        self.config, self.features = config, features
        self.choice = LayerChoice("one", ())
        self.embedding = None
        inputs = features.dimensions
        if features.hidden:
            self.choice = LayerChoice.parse(config.features, features.num_layers)
            parts, learned = self.choice.parts, self.choice.how == "mix"
            self.embedding = LayerMix(parts, features.hidden, learned=learned)
            inputs += features.hidden * (1 if learned else parts)
        self.dropout = Dropout(config.dropout)
        self.lstm = nn.LSTM(
            inputs,
            config.hidden // 2,
            config.layers,
            dropout=config.dropout if config.layers > 1 else 0.0,
            bidirectional=True,
        )

    def forward(self, batch: Batch) -> Tensor:
        weight = next(self.lstm.parameters())
        x = batch.ids
        if not x.is_floating_point():
            x = self.features.compute(batch, self.choice, weight.device)
        x = x.to(weight.device)
        if self.embedding is not None:
            # The large mean is subtracted before the conversion to bf16, which would lose digits.
            states, vectors = x.tensor_split([len(self.embedding.mean)], 1)
            x = torch.cat([vectors, self.embedding(states)], 1)
        out, _ = run_packed(self.lstm, self.dropout(x.to(weight)), text_lengths(batch))
        return out

    @torch.no_grad()
    def precompute(self, features: Sequence[Feature]) -> list[Feature]:
        computed, device = list(features), next(self.lstm.parameters()).device
        tokens = sum(feature.tokens for feature in computed)
        width = self.choice.parts * self.features.hidden + self.features.dimensions
        say(f"frozen features: {tokens:,} tokens × {width:,}, {2 * tokens * width / 1e6:,.0f} MB")
        with progress() as bar:
            task = bar.add_task("frozen features", total=len(computed), note="")
            for indices in by_length([feature.tokens for feature in computed], MAX_BATCH_TOKENS):
                batch = Batch.of([computed[i].encoding for i in indices])
                rows = self.features.compute(batch, self.choice, device).cpu()
                for i, part in zip(indices, rows.split(list(batch.layout.lengths)), strict=True):
                    encoding = replace(computed[i].encoding, ids=part.numpy())
                    computed[i] = replace(computed[i], encoding=encoding)
                bar.update(task, advance=len(indices))
        if self.features.dimensions:
            self._check_coverage([feature.encoding.ids[1:-1] for feature in computed])
        if self.embedding is not None and not self.embedding.deviation.any():
            self.embedding.fit([feature.encoding.ids for feature in computed])
        return computed

    def _check_coverage(self, words: Sequence[Any]) -> None:
        """Print the fraction of words that have a word vector.

        Raises:
            DataError: If no word has a vector, and there are no other features.
        """
        vectors = np.concatenate(words)[:, -self.features.dimensions :]
        coverage = float(vectors.any(1).mean()) if len(vectors) else 0.0
        if not coverage and not self.features.hidden:
            raise DataError("no word in the examples has a word vector; use other word vectors")
        say(f"word vectors: {coverage:.1%} of the words have a vector")

    def save_input(self, folder: Path, tokenizer: Tokenizer) -> None:
        for name, file in self.features.files.items():
            target = folder / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(file, target)

    def build_head(self, name: str, labels: Sequence[str]) -> nn.Module:
        match name:
            case "tag":
                return Tagger(self.config, len(labels))
            case "crf":
                return CRFTagger(self.config, labels)
            case "classify":
                return TextClassifier(self.config, len(labels))
            # `training.task_model` removes this head from a bidirectional model.
            case "lm":
                return nn.Identity()
        raise ConfigError(
            f"{name} is not supported by models on frozen features; use classify or tag"
        )

    def mixture(self) -> dict[str, float]:
        """Return the learned weight of each layer and the scale of the weighted sum, if any."""
        if self.embedding is None or self.embedding.mix is None:
            return {}
        mix: ScalarMix = self.embedding.mix
        return mix.layer_weights(self.choice.layers)


class TextClassifier(nn.Module):
    """Classifier of texts or pairs of texts (InferSent).

    Its input is [u, v, |u - v|, u · v], where u and v are the mean states of the two texts. For a
    single text, v is 0.
    Source: Conneau et al. 2017, section 3.1.

    Shapes:
        states: (N, D); returns (S, L).
    """

    def __init__(self, config: EncoderConfig, labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.out = nn.Linear(4 * config.hidden, labels)

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        text = 2 * batch.layout.sequence_ids + batch.types
        count = 2 * batch.layout.sequences
        sums = states.new_zeros(count, states.shape[1]).index_add(0, text, self.dropout(states))
        means = sums / text.bincount(minlength=count).clamp_min(1)[:, None]
        u, v = means[::2], means[1::2]
        out: Tensor = self.out(torch.cat([u, v, (u - v).abs(), u * v], 1))
        return out
