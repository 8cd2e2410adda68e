"""Extraction of keywords from passages and queries, for full-text search in any language.

Stop words are not removed and words are not stemmed, because both depend on the language.
"""

from __future__ import annotations

import itertools
import re
import unicodedata

from tokenizers import pre_tokenizers

_NO_SPACES = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"  # Khmer, Tai Le, New Tai Lue, Tai Tham
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3100-\u312f\u31a0-\u31bf"  # Bopomofo
    "\uac00-\ud7af"  # Hangul, whose words include particles
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
)
_PARTS = re.compile(f"([{_NO_SPACES}]+)")
_ACCENTS = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u064b-\u0652]")
"""Accents, and vowel signs of Hebrew and Arabic, which most texts leave out."""

_HAS_LETTER = re.compile(r"[^\W_]")


def passage_keywords(text: str) -> list[str]:
    """Return the keywords of a passage.

    Words are split as in BERT, converted to lowercase, and stripped of accents. In scripts that do
    not separate words by spaces, every character and every pair of adjacent characters is a
    keyword.
    """
    return _keywords(text, characters=True)


def query_keywords(text: str) -> list[str]:
    """Return the keywords of a query, as for a passage but with fewer single characters.

    In scripts that do not separate words by spaces, a single character is a keyword only if it has
    no neighbor to form a pair with. See also `passage_keywords`.
    """
    return _keywords(text, characters=False)


def _keywords(text: str, *, characters: bool) -> list[str]:
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    plain = unicodedata.normalize("NFKC", plain).casefold()
    keywords: list[str] = []
    for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(plain):
        for index, part in enumerate(_PARTS.split(word)):
            if index % 2 == 0:
                keywords += [part] if _HAS_LETTER.search(part) else []
                continue
            keywords += part if characters or len(part) == 1 else []
            keywords += map("".join, itertools.pairwise(part))
    return keywords
