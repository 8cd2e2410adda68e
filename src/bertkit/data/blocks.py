"""Running text cut into blocks, of which each token's successor is to be predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus import Corpus
from bertkit.data.order import Shuffled
from bertkit.errors import DataError
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Tokens, and the one that follows each. Shapes: ids, types and labels (T,)."""

    ids: Ids
    types: Ids
    labels: Ids

    def __len__(self) -> int:
        return len(self.ids)


class Blocks(Shuffled[Block]):
    """The blocks of some documents, each of one document.

    A document has the end token before its first word and behind its last, and is cut every
    `length` tokens; the last block is shorter. Radford et al. 2018, section 3.1.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        length: int,
        documents: Ids | None = None,
        seed: int = 0,
    ) -> None:
        self.corpus, self.end, self.length, self.seed = corpus, tokenizer.eos, length, seed
        self.documents = np.arange(corpus.documents) if documents is None else documents
        bounds = corpus.starts[corpus.document_starts]
        sizes = np.diff(bounds)[self.documents] + 1  # tokens that have a successor
        self._first = np.cumsum([0, *(-(-sizes // length))])
        if not len(self):
            raise DataError(f"{corpus.folder}: no text to make samples from")

    def __len__(self) -> int:
        """Blocks of one epoch."""
        return int(self._first[-1])

    def sample(self, epoch: int, index: int) -> Block:
        """One block, the same in every epoch."""
        place = int(np.searchsorted(self._first, index, side="right")) - 1
        start = int(index - self._first[place]) * self.length
        first, last = self.corpus.document_starts[self.documents[place] :][:2]
        return block(self.corpus.slice(int(first), int(last)), start, self.length, self.end)


def block(text: NDArray[np.integer[Any]], start: int, length: int, end: int | None) -> Block:
    """Of the end token, a text and the end token again `length` tokens, from `start` on; of the
    text alone where there is no such token."""
    if end is None:
        tokens = text[start : start + length + 1].astype(np.int64)
        return Block(tokens[:-1], np.zeros(len(tokens) - 1, dtype=np.int64), tokens[1:])
    tokens = text[max(start - 1, 0) : start + length].astype(np.int64)  # one more, to be predicted
    begins, ends = start == 0, start + length > len(text)
    tokens = np.concatenate([[end] * begins, tokens, [end] * ends]).astype(np.int64)
    return Block(tokens[:-1], np.zeros(len(tokens) - 1, dtype=np.int64), tokens[1:])
