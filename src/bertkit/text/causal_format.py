"""Input format with which causal models label texts. Radford et al. 2018, figure 1."""

from __future__ import annotations

import tokenizers
from tokenizers import pre_tokenizers, processors

from bertkit.text.tokenizer import Tokenizer

START, DELIMITER, EXTRACT, PAD = "<start>", "<delimiter>", "<extract>", "<pad>"
SPECIAL = (START, DELIMITER, EXTRACT)
"""Special tokens before a text, between two texts, and after the last text.

The label is predicted from the hidden state of the last special token. To find this token,
transformers needs a padding token: it takes the last token that is not padding.
"""


def add_causal_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer that adds the tokens in `SPECIAL` to each text or pair.

    If the vocabulary lacks a token, the token is added to it. Existing ids do not change. The
    delimiter becomes the `sep` token. If the tokenizer adds a BOS token, it remains the first
    token.

    Args:
        tokenizer: The tokenizer of a causal model.

    Raises:
        TokenizerError: If the ids of the tokenizer are in a separate file (Marian).
    """
    core = tokenizers.Tokenizer.from_str(tokenizer.core.to_str())
    padding = [] if tokenizer.knows("pad") else [PAD]
    core.add_special_tokens([START, DELIMITER, EXTRACT, *padding])
    bos = [tokenizer.bos] if tokenizer.knows("bos") else []
    before = tokenizer.pieces([token for token in tokenizer.added[0] if token in bos])
    start = " ".join([*before, START])
    template = processors.TemplateProcessing(
        single=f"{start} $A {EXTRACT}",
        pair=f"{start} $A {DELIMITER} $B:0 {EXTRACT}",
        special_tokens=[
            (name, core.token_to_id(name)) for name in dict.fromkeys([*before, *SPECIAL])
        ],
    )
    bytes_ = isinstance(core.pre_tokenizer, pre_tokenizers.ByteLevel)
    offsets = [processors.ByteLevel(trim_offsets=False)] if bytes_ else []
    core.post_processor = processors.Sequence([*offsets, template])
    settings = {"sep_token": DELIMITER, **({"pad_token": PAD} if padding else {})}
    # With another class, transformers would not add the special tokens.
    return tokenizer.remade(core, {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
