"""Conversion of token ids in requests to the texts that they represent."""

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
    """Return the inputs of a request as texts, converting token ids to text.

    Args:
        context: Context of the request.
        inputs: A text, the token ids of a text, or a list of these.
        field: Name of the request field that contains the inputs, for errors.
        convert: Function that converts token ids to a text.

    Raises:
        RequestError: If the inputs exceed a limit, or the list mixes token ids with other inputs.
    """
    kinds = set(map(type, inputs))
    if int in kinds and len(kinds) > 1:
        raise invalid("expected only texts, or only lists of token ids", field)
    items = [inputs] if isinstance(inputs, str) or int in kinds else inputs
    if kinds == {str}:
        return list(items)
    context.check(items, field)

    def texts(part: Sequence[Any]) -> list[tuple[int, str]]:
        return [(len(it), it if isinstance(it, str) else convert(it)) for it in part]

    pairs = await context.read(items, list(map(len, items)), texts, lambda pair: pair[0])
    return [text for _, text in pairs]


def text_of(tokenizer: Tokenizer, field: str, ids: Sequence[int]) -> str:
    """Return a text for which the tokenizer returns exactly the given token ids.

    Without this check, ids from another vocabulary would silently give wrong embeddings. Such ids
    are rejected because they lack the special tokens of this vocabulary, or because this tokenizer
    returns them for no text.

    Args:
        tokenizer: Tokenizer of the model.
        field: Name of the request field that contains the ids, for errors.
        ids: The token ids, including the special tokens that the tokenizer adds.

    Raises:
        RequestError: If there is no such text.
    """
    before, after = tokenizer.added
    inner = ids[len(before) : len(ids) - len(after)]
    try:
        text = decode(tokenizer, inner, skip_special_tokens=False)
        if text and tokenizer.encode(text, max_length=NO_LIMIT).ids.tolist() == list(ids):
            return text
    except DataError:
        # The error means that an id is not in the vocabulary.
        pass
    raise invalid(
        "these token ids are not the tokens of any text for this model; send the ids that "
        "/tokenize returns, with special tokens, or send texts (LangChain: "
        "OpenAIEmbeddings(check_embedding_ctx_length=False))",
        field,
    )


def decode(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Convert token ids to text.

    Args:
        tokenizer: Tokenizer of the model.
        ids: The token ids.
        skip_special_tokens: Whether to leave out special tokens.

    Raises:
        DataError: If an id is not in the vocabulary.
    """
    skipped = tokenizer.special_ids if skip_special_tokens else ()
    tokens, decoder = (
        tokenizer.pieces([id for id in ids if id not in skipped]),
        tokenizer.core.decoder,
    )
    return " ".join(tokens) if decoder is None else decoder.decode(tokens)
