"""Functions that split raw text into words, and that search for a word in a text."""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import lru_cache

from tokenizers import Regex, pre_tokenizers

# The source is `_is_chinese_char` in tokenization.py of Google's BERT.
CHINESE = (
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


MIN_SIMILARITY = 0.5
"""Minimum similarity of a word and one of its forms: the ratio that difflib computes."""

MAX_WORD_CHARACTERS = 64
"""Maximum number of characters of a word that `find_word` compares."""


@lru_cache
def word_splitter() -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits text into words, like BERT's basic tokenizer.

    White space separates words. Each punctuation mark and each Chinese character is a word.
    """
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(CHINESE), "isolated"), pre_tokenizers.BertPreTokenizer()]
    )


def find_word(word: str, text: str) -> tuple[int, int] | None:
    """Find a word, or one of its forms, in a text, and return its characters [start, end).

    For "carry", for example, it finds "carried". The result is the most similar word with the same
    first letter, or the first of several equally similar words. Therefore, "went" is not found for
    "go". The similarity is the ratio of difflib, and must be at least `MIN_SIMILARITY`. Words
    longer than `MAX_WORD_CHARACTERS` are skipped, because the comparison takes cubic time. If no
    word is similar, the result is None.
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
