"""Words of columns, split like raw text, so that a tagger processes both in the same way."""

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
        The characters [start, end) of each word.
    """
    return [span for _, span in word_splitter().pre_tokenize_str(text)]


@dataclass(frozen=True)
class WordParts:
    """The parts of a text's words: what the words would be in raw text (`words_of`).

    A tokenizer encodes `chunks`: strings between white space, and single Chinese characters. The
    tokens therefore do not depend on whether the words come from columns or from raw text.
    """

    spans: list[tuple[int, int]]
    """Characters [start, end) of each part."""
    words: list[int]
    """Index of the word that each part belongs to."""
    chunks: list[str]
    first: list[int]
    """Index of the first part of each chunk."""

    def of_word(self, word: int) -> int:
        """Return the index of a word's first part."""
        return bisect_left(self.words, word)

    def of_tokens(self, encoding: Encoding) -> Encoding:
        """Return an encoding of `chunks` whose `words` are indices of parts.

        A token belongs to the part in which it starts, and the first token of a chunk to the
        first part, because a normalizer may move offsets.
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
        """Return the end of the run of parts that each part with a token starts.

        A part without its own token shares the token of the part before it in its chunk.
        """
        after = [*seen[1:], len(self.spans)]
        chunk_ends = [*self.first[1:], len(self.spans)]
        return [
            min(end, chunk_ends[bisect_right(self.first, part) - 1])
            for part, end in zip(seen, after, strict=False)
        ]


def split_words(text: str, word_spans: Sequence[tuple[int, int]]) -> WordParts:
    """Split words at the positions where `words_of` splits raw text."""
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
