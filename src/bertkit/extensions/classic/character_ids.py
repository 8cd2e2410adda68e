"""Words as ELMo reads them: the bytes of their characters, between marks of begin and end.

Source: Peters et al. 2018, and the characters of the published weights (allenai/bilm-tf).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SENTENCE, WORD, PADDING = (256, 257), (258, 259), 260
"""What begins and ends a sentence, and a word; and what stands behind a word's end."""

MASK = 1
"""Published ids are larger by one: 0 stands for places without a word, of which there are none."""

CHARACTERS = MASK + PADDING + 1


def sentence_ids(words: Sequence[str], width: int) -> NDArray[np.int64]:
    """The ids of a sentence, its begin and end among them. Shapes: W words -> (W + 2, width).

    A word of more than `width` - 2 bytes is cut, as ELMo was trained. No word stands for the begin
    or end of a sentence, not even "<S>".
    """
    rows = np.full((len(words) + 2, width), PADDING, dtype=np.int64)
    content = [bytes_of(word)[: width - 2] for word in words]
    for row, mark in ((0, SENTENCE[0]), (-1, SENTENCE[1])):
        rows[row, :3] = WORD[0], mark, WORD[1]
    for row, word in enumerate(content, start=1):
        rows[row, 0] = WORD[0]
        rows[row, 1 : len(word) + 1] = np.frombuffer(word, dtype=np.uint8)
        rows[row, len(word) + 1] = WORD[1]
    return rows + MASK


def bytes_of(word: str) -> bytes:
    """UTF-8, without halves of surrogate pairs, which have none."""
    return word.encode("utf-8", "ignore")
