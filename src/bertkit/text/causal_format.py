"""How a causal model reads what it labels: Radford et al. 2018, figure 1."""

from __future__ import annotations

import tokenizers
from tokenizers import pre_tokenizers, processors

from bertkit.text.tokenizer import Tokenizer

START, DELIMITER, EXTRACT, PAD = "<start>", "<delimiter>", "<extract>", "<pad>"
SPECIAL = (START, DELIMITER, EXTRACT)
"""Before a text, between two, and behind them: the token from whose state an answer is read. Packed
batches have no padding; transformers finds the last token by what is none."""


def framed(tokenizer: Tokenizer) -> Tokenizer:
    """The same with these tokens, of which it adds those that it lacks, around each text or pair.

    No id changes; what separates texts (`sep`) is the delimiter. A BOS token that the tokenizer
    adds stays before the frame.
    Raises: TokenizerError where ids are not those of a core (Marian).
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
    # a class of its own would have transformers leave out the frame
    return tokenizer.remade(core, {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
