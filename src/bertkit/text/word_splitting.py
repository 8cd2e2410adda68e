"""Splitting of raw text into words, and search for a word in a text."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import lru_cache

from tokenizers import Regex, pre_tokenizers

# Google's BERT, tokenization.py, _is_chinese_char
CHINESE = (
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


MIN_SIMILARITY = 0.5
"""Minimum difflib ratio of a word and one of its forms."""

MAX_WORD_CHARACTERS = 64
"""Maximum number of characters of a word."""


@lru_cache
def word_splitter() -> pre_tokenizers.PreTokenizer:
    """Return BERT's basic tokenization.

    White space separates words. Each punctuation mark and each Chinese character is a word.
    """
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(CHINESE), "isolated"), pre_tokenizers.BertPreTokenizer()]
    )


def find_word(word: str, text: str) -> tuple[int, int] | None:
    """Return the characters [start, end) of a word or one of its forms in a text.

    For carry, for example, it finds "carried". The result is the first of the most similar words
    (ratio of difflib, at least `MIN_SIMILARITY`) with the same first letter; `went` is not found
    for `go`. Words longer than `MAX_WORD_CHARACTERS` are skipped, because the comparison takes
    cubic time.
    """
    target = word.casefold()
    best, best_span, start = 0.0, None, 0
    for part in text.split():
        start = text.index(part, start)
        bare = part.strip(".,;:!?\"'()[]`")
        candidate = bare.casefold()
        if candidate[:1] == target[:1] and max(len(candidate), len(target)) <= MAX_WORD_CHARACTERS:
            ratio = SequenceMatcher(None, target, candidate, autojunk=False).ratio()
            if ratio > best and ratio >= MIN_SIMILARITY:
                begin = start + part.index(bare)
                best, best_span = ratio, (begin, begin + len(bare))
        start += len(part)
    return best_span
