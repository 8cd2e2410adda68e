"""Sentences of a corpus of whole words, as an ELMo reads them and what it is to tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.batch import Batch, by_length
from bertkit.data.corpus import Corpus
from bertkit.data.shuffling import Shuffled
from bertkit.errors import DataError
from bertkit.extensions.classic.character_ids import sentence_ids

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Sentence:
    """One sentence between its begin and its end. Shapes: ids (T, characters); words (T,)."""

    ids: Ids
    words: Ids

    @property
    def types(self) -> Ids:
        return np.zeros_like(self.words)


class WholeWordSentences(Shuffled[Sentence]):
    """The sentences of some documents, each alone, as an ELMo is used.

    `names` are the words by their ids; `size` of them, the first, can be told, and others are
    `unknown`. Shapes: begin, end and unknown are ids.
    """

    def __init__(
        self,
        corpus: Corpus,
        names: Sequence[str],
        *,
        marks: tuple[int, int, int],
        size: int,
        characters: int,
        documents: Ids | None = None,
        seed: int = 0,
    ) -> None:
        self.corpus, self.size, self.seed = corpus, size, seed
        self.begin, self.end, self.unknown = marks
        documents = np.arange(corpus.documents) if documents is None else documents
        starts = corpus.document_starts
        sentences = [np.arange(starts[d], starts[d + 1]) for d in documents]
        self.numbers = np.concatenate(sentences) if sentences else np.empty(0, np.int64)
        if not len(self.numbers):
            raise DataError(f"{corpus.folder}: no text to make samples from")
        spelled = sentence_ids(names, characters)
        self._spelled: NDArray[Any] = spelled[1:-1].astype(np.uint16)
        self._spelled[[self.begin, self.end]] = spelled[[0, -1]]

    def __len__(self) -> int:
        """Sentences of one epoch."""
        return len(self.numbers)

    def sample(self, epoch: int, index: int) -> Sentence:
        """One sentence, the same in every epoch."""
        number = int(self.numbers[index])
        text = self.corpus.slice(number, number + 1).astype(np.int64)
        words = np.concatenate([[self.begin], text, [self.end]])
        told = np.where(words < self.size, words, self.unknown)
        return Sentence(self._spelled[words].astype(np.int64), told)


def sentence_batches(sentences: Sequence[Sentence], max_batch_tokens: int) -> list[Batch]:
    """Sentences, shortest first, in batches of at most so many words."""
    groups = by_length([len(sentence.words) for sentence in sentences], max_batch_tokens)
    return [_batch([sentences[place] for place in group]) for group in groups]


def _batch(sentences: Sequence[Sentence]) -> Batch:
    after = np.concatenate([sentence.words[1:] for sentence in sentences])
    before = np.concatenate([sentence.words[:-1] for sentence in sentences])
    targets = {"forward": torch.from_numpy(after), "backward": torch.from_numpy(before)}
    return Batch.of(sentences, targets=targets)
