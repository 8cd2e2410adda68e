"""Token ids in requests, and the texts that they represent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bertkit.errors import DataError
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer
from bertkit.web import invalid


async def texts_of(
    context: RequestContext, inputs: Any, field: str, convert: Callable[[list[int]], str]
) -> list[str]:
    """Return the texts of a request, and convert token ids to texts.

    Args:
        context: Context of the request.
        inputs: A text, the token ids of a text, or a list of these.
        field: Name of the inputs in errors.
        convert: Function that returns the text of token ids.

    Raises:
        RequestError: If the inputs exceed a limit, or the list mixes token ids with other inputs.
    """
    kinds = set(map(type, inputs))
    if int in kinds and len(kinds) > 1:
        raise invalid("expected texts, or lists of token ids", field)
    items = [inputs] if isinstance(inputs, str) or int in kinds else inputs
    if kinds == {str}:
        return list(items)
    context.check(items, field)

    def texts(part: Sequence[Any]) -> list[tuple[int, str]]:
        return [(len(it), it if isinstance(it, str) else convert(it)) for it in part]

    pairs = await context.read(items, list(map(len, items)), texts, lambda pair: pair[0])
    return [text for _, text in pairs]


def text_of(tokenizer: Tokenizer, field: str, ids: Sequence[int]) -> str:
    """Return the text whose token ids are exactly these.

    Ids of another vocabulary would silently give wrong embeddings. They are rejected, because they
    lack the special tokens of this vocabulary, or because no text has these ids here.

    Args:
        tokenizer: Tokenizer of the model.
        field: Name of the ids in errors.
        ids: The token ids, with the special tokens that the tokenizer adds.

    Raises:
        RequestError: If no text has these ids.
    """
    before, after = tokenizer.added
    inner = ids[len(before) : len(ids) - len(after)]
    try:
        text = decode(tokenizer, inner, skip_special_tokens=False)
        if text and tokenizer.encode(text, max_length=NO_LIMIT).ids.tolist() == list(ids):
            return text
    except DataError:
        # An id is not in the vocabulary.
        pass
    raise invalid(
        "no text has these token ids in the vocabulary of this model; send the ids that /tokenize "
        "returns, with special tokens, or texts (LangChain: OpenAIEmbeddings("
        "check_embedding_ctx_length=False))",
        field,
    )


def decode(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Return the text of token ids.

    Args:
        tokenizer: Tokenizer of the model.
        ids: The token ids.
        skip_special_tokens: Whether to omit special tokens.

    Raises:
        DataError: If an id is not in the vocabulary.
    """
    skipped = tokenizer.special_ids if skip_special_tokens else ()
    tokens, decoder = (
        tokenizer.pieces([id for id in ids if id not in skipped]),
        tokenizer.core.decoder,
    )
    return " ".join(tokens) if decoder is None else decoder.decode(tokens)
