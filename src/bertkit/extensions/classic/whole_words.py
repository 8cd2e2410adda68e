"""Training samples for ELMo: the sentences of a corpus of whole words."""

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
    """Sentence, including markers for its beginning and end.

    Shapes:
        ids: (T, characters), the character ids of each word.
        words: (T,), the word ids.
    """

    ids: Ids
    words: Ids

    @property
    def types(self) -> Ids:
        return np.zeros_like(self.words)


class WholeWordSentences(Shuffled[Sentence]):
    """Sentences of documents, where each sentence is a separate sample.

    Args:
        corpus: The corpus.
        names: The word with each id.
        marks: Ids of the beginning and end of a sentence, and of unknown words.
        size: Number of words that the softmax layer predicts. All other words count as unknown.
        characters: Number of character ids per word.
        documents: Indices of the documents to use. Default: all.
        seed: Random seed for the order of the sentences.

    Raises:
        DataError: If the documents contain no text.
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
            raise DataError(f"{corpus.folder}: contains no text to train on; prepare other files")
        character_ids = sentence_ids(names, characters)
        self._character_ids: NDArray[Any] = character_ids[1:-1].astype(np.uint16)
        self._character_ids[[self.begin, self.end]] = character_ids[[0, -1]]

    def __len__(self) -> int:
        """Return the number of sentences per epoch."""
        return len(self.numbers)

    def sample(self, epoch: int, index: int) -> Sentence:
        """Return a sentence. It is the same in every epoch."""
        number = int(self.numbers[index])
        text = self.corpus.slice(number, number + 1).astype(np.int64)
        words = np.concatenate([[self.begin], text, [self.end]])
        targets = np.where(words < self.size, words, self.unknown)
        return Sentence(self._character_ids[words].astype(np.int64), targets)


def sentence_batches(sentences: Sequence[Sentence], max_batch_tokens: int) -> list[Batch]:
    """Pack sentences into batches of at most `max_batch_tokens` words, shortest sentences first.

    Args:
        sentences: The sentences.
        max_batch_tokens: Maximum number of words in a batch.
    """
    groups = by_length([len(sentence.words) for sentence in sentences], max_batch_tokens)
    return [_batch([sentences[index] for index in group]) for group in groups]


def _batch(sentences: Sequence[Sentence]) -> Batch:
    after = np.concatenate([sentence.words[1:] for sentence in sentences])
    before = np.concatenate([sentence.words[:-1] for sentence in sentences])
    targets = {"forward": torch.from_numpy(after), "backward": torch.from_numpy(before)}
    return Batch.of(sentences, targets=targets)
