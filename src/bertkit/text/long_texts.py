"""What to do with a text longer than the model: a policy named at each call, never a surprise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, refuse_unknown
from bertkit.text.encoding import Encoding
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer

Long = Literal["error", "truncate", "window"]
"""Refuse it; cut it and say so; or read it in overlapping windows."""


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
    """Encodings of at most `length` tokens, and which text each belongs to.

    Only windows are several for one text; a quarter of each overlaps the next, and of a pair it is
    the second that is cut into windows. `where` says where each text stands, for messages;
    `prompts` are put before each text, and before each of its windows. `windowed` says whether
    windows are to be advised.
    Raises: DataError for a text that is too long, where `long` is error.
    """
    refuse_unknown("long", long, get_args(Long))
    if long == "window":
        encodings, owner = [], []
        for place, text in enumerate(texts):
            windows = tokenizer.windows(
                text,
                None if pairs is None else pairs[place],
                max_length=length,
                overlap=length // 4,
                slide="first" if pairs is None else "second",
                prompt=prompts[place] if prompts else "",
            )
            encodings += windows
            owner += [place] * len(windows)
        return encodings, owner
    limit = length if long == "truncate" else NO_LIMIT
    encodings = tokenizer.encode_batch(
        texts, pairs, max_length=limit, truncate="longest", prompts=prompts
    )
    for place, encoding in enumerate(encodings):
        if len(encoding) > length:
            stands = f"{where[place]}: " if where else ""
            remedy = "shorten it, cut it (--long truncate), or read it in parts (--long window)"
            if not windowed:
                remedy = "shorten it, or cut it (--long truncate)"
            raise DataError(
                f"{stands}{texts[place][:40]!r}…: {len(encoding)} tokens, and the model reads "
                f"{length}; {remedy}"
            )
    return encodings, list(range(len(texts)))


def averaged(
    rows: NDArray[np.float32], encodings: Sequence[Encoding], owner: Sequence[int]
) -> NDArray[np.float32]:
    """Average the outputs of a text's windows, weighted by window length.

    Shapes: rows (W, D), in the order of the texts -> (S, D).
    """
    if len(rows) == owner[-1] + 1:
        return rows
    sizes = np.array([len(encoding) for encoding in encodings], dtype=np.float32)
    sums = np.zeros((owner[-1] + 1, rows.shape[1]), dtype=np.float32)
    np.add.at(sums, owner, rows * sizes[:, None])
    return (sums / np.bincount(owner, sizes)[:, None]).astype(np.float32)


def cut(encodings: Sequence[Encoding], owner: Sequence[int]) -> list[bool]:
    """Which texts were cut. Shapes: (S,)."""
    texts = [False] * (owner[-1] + 1)
    for place, encoding in zip(owner, encodings, strict=True):
        texts[place] |= encoding.truncated
    return texts
