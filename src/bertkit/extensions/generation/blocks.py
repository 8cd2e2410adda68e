"""Training samples for next-token prediction: blocks of consecutive tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.batch import Batch
from bertkit.data.corpus import Corpus
from bertkit.data.shuffling import Shuffled
from bertkit.errors import DataError
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TokenBlock:
    """Consecutive tokens of a document. The label of each token is the token after it.

    Shapes:
        ids, types, labels: (T,).
    """

    ids: Ids
    types: Ids
    labels: Ids

    def __len__(self) -> int:
        return len(self.ids)


class Blocks(Shuffled[TokenBlock]):
    """Blocks of up to `length` tokens, where each block comes from one document.

    A document starts with a BOS token if the tokenizer adds one, otherwise with an EOS token, and
    ends with an EOS token. It is split after every `length` tokens, so its last block can be
    shorter. Radford et al. 2018, section 3.1.
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
        self.begin = tokenizer.begin[-1]
        self.documents = np.arange(corpus.documents) if documents is None else documents
        bounds = corpus.starts[corpus.document_starts]
        # The number of tokens that have a next token.
        sizes = np.diff(bounds)[self.documents] + 1
        self._first = np.cumsum([0, *(-(-sizes // length))])
        if not len(self):
            raise DataError(f"{corpus.folder}: contains no text to train on; prepare other files")

    def __len__(self) -> int:
        """Return the number of blocks per epoch."""
        return int(self._first[-1])

    def sample(self, epoch: int, index: int) -> TokenBlock:
        """Return a block. It is the same in every epoch."""
        document = int(np.searchsorted(self._first, index, side="right")) - 1
        start = int(index - self._first[document]) * self.length
        first, last = self.corpus.document_starts[self.documents[document] :][:2]
        text = self.corpus.slice(int(first), int(last))
        return block(text, start, self.length, self.end, self.begin)


def block(
    text: NDArray[np.integer[Any]],
    start: int,
    length: int,
    end: int | None,
    begin: int | None = None,
) -> TokenBlock:
    """Return one block of a document.

    The document is the sequence of the token `begin`, the text, and the token `end`.

    Args:
        text: Token ids of the document.
        start: Index of the block's first token in the sequence.
        length: Maximum number of tokens in the block.
        end: EOS token. If None, the sequence is only the text, without `begin`.
        begin: Token before the text. Default: `end`.
    """
    if end is None:
        # The block needs one more token, the label of its last token.
        tokens: NDArray[Any] = text[start : start + length + 1]
    else:
        begins = [end if begin is None else begin] * (start == 0)
        ends = [end] * (start + length > len(text))
        tokens = np.concatenate([begins, text[max(start - 1, 0) : start + length], ends])
    tokens = tokens.astype(np.int64)
    return TokenBlock(tokens[:-1], np.zeros(len(tokens) - 1, dtype=np.int64), tokens[1:])


def pack_blocks(blocks: Sequence[TokenBlock]) -> Batch:
    """Pack blocks into a batch. The targets of the LM head are the labels of the blocks."""
    labels = torch.from_numpy(np.concatenate([block.labels for block in blocks]))
    return Batch.of(blocks, targets={"lm": labels})
