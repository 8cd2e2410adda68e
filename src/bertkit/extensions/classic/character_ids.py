"""Character ids of words for ELMo: the bytes of a word between a begin marker and an end marker.

Source: Peters et al. 2018; the ids are the same as for the published weights (allenai/bilm-tf).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SENTENCE, WORD, PADDING = (256, 257), (258, 259), 260
"""Ids of the markers for the beginning and end of a sentence and of a word, and of the padding
after a word."""

MASK = 1
"""Offset that is added to all ids. In published ids, 0 stands for the absence of a word. bertkit
does not use 0."""

CHARACTERS = MASK + PADDING + 1


def sentence_ids(words: Sequence[str], width: int) -> NDArray[np.int64]:
    """Convert a sentence to character ids, including a row for its beginning and for its end.

    Words of more than `width` - 2 bytes are truncated, as in the training of ELMo. No word has the
    same ids as the beginning or end of a sentence, not even "<S>".

    Args:
        words: The W words of the sentence.
        width: Number of ids per word.

    Shapes:
        returns: (W + 2, width).
    """
    rows = np.full((len(words) + 2, width), PADDING, dtype=np.int64)
    content = [bytes_of(word)[: width - 2] for word in words]
    for row, boundary in ((0, SENTENCE[0]), (-1, SENTENCE[1])):
        rows[row, :3] = WORD[0], boundary, WORD[1]
    for row, word in enumerate(content, start=1):
        rows[row, 0] = WORD[0]
        rows[row, 1 : len(word) + 1] = np.frombuffer(word, dtype=np.uint8)
        rows[row, len(word) + 1] = WORD[1]
    return rows + MASK


def bytes_of(word: str) -> bytes:
    """Encode a word as UTF-8. Lone surrogates, which cannot be encoded, are removed."""
    return word.encode("utf-8", "ignore")
