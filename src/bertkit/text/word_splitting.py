"""Splitting of raw text into words."""

from __future__ import annotations

from functools import lru_cache

from tokenizers import Regex, pre_tokenizers

# The source is `_is_chinese_char` in tokenization.py of Google's BERT.
CHINESE = (
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


@lru_cache
def word_splitter() -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits text into words, like BERT's basic tokenizer.

    White space separates words. Each punctuation mark and each Chinese character is a word.
    """
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(CHINESE), "isolated"), pre_tokenizers.BertPreTokenizer()]
    )
