"""Raw text as whole words, and the characters of a word in a text."""

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
"""Least difflib ratio at which one word counts as a form of the other."""

MAX_WORD_CHARACTERS = 64
"""Most characters of a word."""


@lru_cache
def word_splitter() -> pre_tokenizers.PreTokenizer:
    """BERT's basic tokenisation: words are what white space divides; each punctuation mark and
    each Chinese character is a word of its own.
    """
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CHINESE), "isolated"),
            pre_tokenizers.BertPreTokenizer(),
        ]
    )


def find_word(word: str, text: str) -> tuple[int, int] | None:
    """Return the characters of a word or one of its forms in a text, as in carry and "carried".

    It is the first of the most similar words (ratio of difflib, at least `MIN_SIMILARITY`) with the
    same first letter; `went` is not found for `go`. Words longer than `MAX_WORD_CHARACTERS` are
    skipped, since comparing takes cubic time.
    """
    wanted = word.casefold()
    best, place, start = 0.0, None, 0
    for part in text.split():
        start = text.index(part, start)
        bare = part.strip(".,;:!?\"'()[]`")
        own = bare.casefold()
        if own[:1] == wanted[:1] and max(len(own), len(wanted)) <= MAX_WORD_CHARACTERS:
            alike = SequenceMatcher(None, wanted, own, autojunk=False).ratio()
            if alike > best and alike >= MIN_SIMILARITY:
                begin = start + part.index(bare)
                best, place = alike, (begin, begin + len(bare))
        start += len(part)
    return place
