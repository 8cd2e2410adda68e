"""Raw text into whole words, as taggers and ELMo read it."""

from __future__ import annotations

from functools import lru_cache

from tokenizers import Regex, pre_tokenizers

# Google's BERT, tokenization.py, _is_chinese_char
CHINESE = (
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


@lru_cache
def word_splitter() -> pre_tokenizers.PreTokenizer:
    """BERT's basic tokenisation: words are what white space divides; each punctuation mark and
    each Chinese character is a word of its own."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CHINESE), "isolated"),
            pre_tokenizers.BertPreTokenizer(),
        ]
    )
