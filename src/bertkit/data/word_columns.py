"""Splitting of the words in column files, so that a tagger processes them like raw text."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertkit.text.encoding import Encoding
from bertkit.text.word_splitting import CHINESE, word_splitter

_CHINESE = re.compile(CHINESE)


def words_of(text: str) -> list[tuple[int, int]]:
    """Split raw text into words with BERT's basic tokenization.

    White space separates words. Each punctuation mark and each Chinese character is a word.

    Returns:
        The start and end (exclusive) of each word, in characters.
    """
    return [span for _, span in word_splitter().pre_tokenize_str(text)]


@dataclass(frozen=True)
class WordParts:
    """Parts into which the words of a text are split, as `words_of` would split raw text.

    A tokenizer encodes `chunks` instead of the words. The tokens are therefore the same whether the
    words come from a column file or from raw text.
    """

    spans: list[tuple[int, int]]
    """Start and end (exclusive) of each part, in characters."""
    words: list[int]
    """Index of the word that each part belongs to."""
    chunks: list[str]
    """Strings that white space separates, and single Chinese characters."""
    first: list[int]
    """Index of the first part of each chunk."""

    def of_word(self, word: int) -> int:
        """Return the index of the first part of a word."""
        return bisect_left(self.words, word)

    def of_tokens(self, encoding: Encoding) -> Encoding:
        """Return a copy of an encoding of `chunks` in which `words` contains indices of parts.

        A token belongs to the part in which it starts. The first token of a chunk always belongs to
        the chunk's first part, because a normalizer may change offsets.
        """
        if len(self.chunks) == len(self.spans):
            return encoding
        starts = [start for start, _ in self.spans]
        ends = [*self.first[1:], len(starts)]
        parts: list[int | None] = []
        chunk_before, part_before = None, 0
        for chunk, offset in zip(encoding.words, encoding.offsets[:, 0].tolist(), strict=True):
            part = None if chunk is None else self.first[chunk]
            if chunk is not None and chunk == chunk_before:
                start = starts[self.first[chunk]] + offset
                part = max(bisect_right(starts, start, hi=ends[chunk]) - 1, part_before)
            parts.append(part)
            chunk_before, part_before = chunk, part or 0
        return replace(encoding, words=parts)

    def ends(self, seen: Sequence[int]) -> list[int]:
        """Return the end (exclusive) of the group of parts that each part in `seen` begins.

        `seen` contains the parts that have a token. A part without a token belongs to the group of
        the part before it in the same chunk.
        """
        after = [*seen[1:], len(self.spans)]
        chunk_ends = [*self.first[1:], len(self.spans)]
        return [
            min(end, chunk_ends[bisect_right(self.first, part) - 1])
            for part, end in zip(seen, after, strict=False)
        ]


def split_words(text: str, word_spans: Sequence[tuple[int, int]]) -> WordParts:
    """Split words into parts at the positions at which `words_of` would split raw text."""
    spans, words, chunks, first = list[tuple[int, int]](), list[int](), list[str](), list[int]()
    last, is_alone = -1, False
    for number, (start, end) in enumerate(word_spans):
        word = text[start:end]
        is_simple = (word.isascii() and word.isalnum()) or len(word) == 1
        inner = [(0, len(word))] if is_simple else words_of(word) or [(0, len(word))]
        for low, high in inner:
            part = word[low:high]
            was_alone, is_alone = is_alone, not part.isascii() and bool(_CHINESE.fullmatch(part))
            if start + low != last or was_alone or is_alone:
                first.append(len(spans))
                chunks.append(part)
            else:
                chunks[-1] += part
            last = start + high
            spans.append((start + low, last))
            words.append(number)
    return WordParts(spans, words, chunks, first)
