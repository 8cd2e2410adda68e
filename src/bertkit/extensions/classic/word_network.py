"""A small network on what is known of words beforehand: their vectors, or a frozen ELMo's states.

What was usual before encoders were fine-tuned: Conneau et al. 2017; Peters et al. 2018.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.console import say
from bertkit.data.tagged_text import untagged
from bertkit.errors import DataError
from bertkit.extensions.classic.feature_classifier import spread_of
from bertkit.extensions.classic.word_models import ElmoFormat
from bertkit.extensions.classic.words import whole_words
from bertkit.models.recurrent import BiLSTM, ScalarMix
from bertkit.nn.dropout import Dropout
from bertkit.tasks.classify import Classify, LabelExample
from bertkit.tasks.task import Feature
from bertkit.text.encoding import Encoding
from bertkit.text.word_vectors import Vectors, tokens


class WordStateEncoder(nn.Module):
    """What is known of words, read by a BiLSTM; each text of a pair alone.

    It stands where a model has its encoder. `words` says of the ids of N words (N,) what is known.
    Shapes: N words -> (N, 2 · width).
    """

    def __init__(self, words: nn.Module, inputs: int, *, width: int, dropout: float) -> None:
        super().__init__()
        self.words = words
        self.dropout = Dropout(dropout)
        self.lstm = BiLSTM(inputs, width, layers=1)

    def forward(self, batch: Batch) -> Tensor:
        texts = 2 * batch.layout.sequence_ids + batch.types
        lengths = texts.unique_consecutive(return_counts=True)[1].tolist()
        out: Tensor = self.dropout(self.lstm(self.dropout(self.words(batch.ids)), lengths))
        return out


class MixedLayers(nn.Module):
    """The weighted sum of the layers of stored states, which learns its weights alone.

    Shapes: states (J, W, D); N of the W words -> (N, D). Source: Peters et al. 2018, equation 1.
    """

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states
        self.mix = ScalarMix(len(states))

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.mix(self.states[:, words].float())
        return out

    def mixture(self) -> dict[str, float]:
        """What it has learned, by layer."""
        return self.mix.told(range(len(self.states)))


@dataclass(frozen=True)
class KnownWords:
    """The words of the texts of train and of dev, numbered, and what is known of each."""

    ids: Mapping[str, Sequence[Sequence[Sequence[int]]]]
    """For train, dev and perhaps test, for each example, the words of each of its texts."""
    width: int
    """D, of what is known of a word."""
    module: Callable[[], nn.Module]
    """Makes what gives it, of ids (N,) -> (N, D)."""

    def features(
        self, task: Classify, name: str, examples: Sequence[LabelExample], *, labelled: bool
    ) -> list[Feature]:
        """The examples of train, of dev or of test as the network reads them."""
        features = []
        for place, (parts, example) in enumerate(zip(self.ids[name], examples, strict=True)):
            words = np.array([word for part in parts for word in part])
            encoding = Encoding(
                ids=words,
                types=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
                offsets=np.zeros((len(words), 2), np.int64),
                words=[None] * len(words),
                sequence=[0] * len(words),
                truncated=False,
            )
            target = task.target(example) if labelled else None
            features.append(Feature(encoding, place, target=target))
        return features


def known_by_vectors(
    file: Path | str, rows: Mapping[str, Sequence[LabelExample]], length: int, *, tune: bool
) -> tuple[KnownWords, dict[str, float]]:
    """At most `length` words of each text by word vectors, which learn with `tune`; and the share
    of the words of train and of dev, each as often as it stands there, that have one.

    A word without one is a zero vector, and so is a text without words.
    Raises: DataError for another file, or where no word of train has a vector.
    """
    vectors = Vectors.load(file)
    split = {name: [_each(tokens, one) for one in some] for name, some in rows.items()}
    words = sorted({word for some in split.values() for texts in some for t in texts for word in t})
    known = {word: row for word in words if (row := vectors.row(word)) is not None}
    index = {word: at for at, word in enumerate(known, 1)}
    coverage = {}
    for name, some in split.items():
        covered = [word in index for texts in some for text in texts for word in text]
        coverage[name] = sum(covered) / max(len(covered), 1)
    if not coverage["train"]:
        raise DataError(f"{file}: no vector of any word of train; are they of one language?")
    say(
        f"word vectors know {coverage['train']:.1%} of the words of train, "
        f"{coverage['dev']:.1%} of those of dev"
    )
    table = torch.from_numpy(vectors.scaled(list(known)))
    table = torch.cat([table.new_zeros(1, table.shape[1]), table])
    ids = {
        name: [
            [[index.get(w, 0) for w in text[:length]] or [0] for text in texts] for texts in some
        ]
        for name, some in split.items()
    }

    def module() -> nn.Module:
        vectors: nn.Module = nn.Embedding.from_pretrained(table.clone(), freeze=not tune)
        return vectors

    return KnownWords(ids, table.shape[1], module), coverage


def known_by_elmo(
    folder: Path | str, rows: Mapping[str, Sequence[LabelExample]], length: int
) -> KnownWords:
    """At most `length` words of each text by the states of a frozen ELMo, which reads it once.

    Layers differ in scale: all are standardized over the words of train.
    A text without words is read as a full stop.
    Raises: CheckpointError for a folder that is no ELMo.
    """
    model = open_format(folder)
    if not isinstance(model, ElmoFormat):
        raise model.mismatch("an ELMo", "use the directory of an ELMo, or remove --elmo")
    frozen = model.load_frozen(LoadSettings())
    each = {
        name: [_each(lambda text: untagged(text).words[:length] or ["."], one) for one in examples]
        for name, examples in rows.items()
    }
    split = frozen.words.split(
        [words for some in each.values() for texts in some for words in texts]
    )
    features = [
        Feature(whole_words(frozen.words.ids(words)), place, np.arange(1, len(words) + 1))
        for place, words in enumerate(split)
    ]
    states = frozen.encode(features, range(frozen.layers + 1))
    learned = sum(len(words) for texts in each["train"] for words in texts)
    for layer, mean, spread in zip(states, *spread_of(states[:, :learned]), strict=True):
        layer.sub_(mean).div_(spread)
    number = itertools.count()
    ids = {
        name: [[[next(number) for _ in words] for words in texts] for texts in some]
        for name, some in each.items()
    }
    return KnownWords(ids, states.shape[2], lambda: MixedLayers(states))


def _each(split: Callable[[str], list[str]], example: LabelExample) -> list[list[str]]:
    texts = [example.text] if example.pair is None else [example.text, example.pair]
    return [split(text) for text in texts]
