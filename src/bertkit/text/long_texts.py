"""Encoding of texts that may exceed the maximum length: error, truncation, or windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, check_choice
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

Long = Literal["error", "truncate", "window"]
"""Policy for long texts: raise an error, truncate them, or split them into overlapping windows."""


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    length: int,
    long: Long,
    where: Sequence[str] | None = None,
    prompts: Sequence[str] | None = None,
    windowed: bool = True,
) -> tuple[list[Encoding], list[int]]:
    """Encode texts as sequences of at most `length` tokens.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        pairs: The second texts, if the inputs are pairs.
        length: Maximum number of tokens.
        long: Policy for longer texts. Windows overlap by a quarter of `length`. In a pair, the
            second text is split into windows.
        where: File and line of each text, for error messages.
        prompts: Prompt of each text. It is also added to each window of the text.
        windowed: Whether the error message suggests windows.

    Returns:
        The encodings, and the index of the text that each encoding belongs to.

    Raises:
        DataError: If a text is too long and `long` is "error".
    """
    check_choice("long", long, get_args(Long))
    if long == "window":
        encodings, text_ids = [], []
        for index, text in enumerate(texts):
            windows = tokenizer.windows(
                text,
                None if pairs is None else pairs[index],
                max_length=length,
                overlap=length // 4,
                slide="first" if pairs is None else "second",
                prompt=prompts[index] if prompts else "",
            )
            encodings += windows
            text_ids += [index] * len(windows)
        return encodings, text_ids
    limit = length if long == "truncate" else NO_LIMIT
    encodings = tokenizer.encode_batch(
        texts, pairs, max_length=limit, truncate="longest", prompts=prompts
    )
    for index, encoding in enumerate(encodings):
        if len(encoding) > length:
            prefix = f"{where[index]}: " if where else ""
            remedy = "shorten it, truncate it (--long truncate), or split it (--long window)"
            if not windowed:
                remedy = "shorten it, or truncate it (--long truncate)"
            raise DataError(
                f"{prefix}{texts[index][:40]!r}…: {len(encoding)} tokens, but the limit is "
                f"{length}; {remedy}"
            )
    return encodings, list(range(len(texts)))


def average_windows(
    rows: NDArray[np.float32], encodings: Sequence[Encoding], owner: Sequence[int]
) -> NDArray[np.float32]:
    """Average the outputs of the windows of each text, weighted by their lengths.

    Args:
        rows: One output per window, in the order of the texts.
        encodings: The windows.
        owner: Index of the text that each window belongs to.

    Shapes:
        rows: (W, D).
        returns: (S, D).
    """
    if len(rows) == owner[-1] + 1:
        return rows
    sizes = np.array([len(encoding) for encoding in encodings], dtype=np.float32)
    sums = np.zeros((owner[-1] + 1, rows.shape[1]), dtype=np.float32)
    np.add.at(sums, owner, rows * sizes[:, None])
    return (sums / np.bincount(owner, sizes)[:, None]).astype(np.float32)


def cut(encodings: Sequence[Encoding], owner: Sequence[int]) -> list[bool]:
    """Return whether each text was truncated.

    Args:
        encodings: Encodings of the texts, or of their windows.
        owner: Index of the text that each encoding belongs to.

    Shapes:
        returns: (S,).
    """
    is_truncated = [False] * (owner[-1] + 1)
    for index, encoding in zip(owner, encodings, strict=True):
        is_truncated[index] |= encoding.truncated
    return is_truncated
