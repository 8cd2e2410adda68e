"""Documents cut into windows: runs of sentences, each the text of one sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus import Corpus

Ids = NDArray[np.int64]


def windows(
    corpus: Corpus, documents: Ids, room: int, *, across: bool, fill: bool, mirror: bool
) -> Ids:
    """(W, 2) first and last sentence (exclusive) of each window.

    A window takes sentences while they fit, at least one, and with `fill` the one more that fills
    it. `across` lets it run on into the next document, with room for a separator between them. The
    sentence that fills a window is longer than others; with `mirror` every other document is cut
    from its end, so that it comes first as often as last.
    """
    starts, limits = corpus.starts, corpus.document_starts
    begin, end = limits[documents], limits[documents + 1]
    if across and len(documents):
        # neighbors in a shard are read as one document
        shards = np.cumsum([shard.documents for shard in corpus.shards])
        breaks = np.flatnonzero((np.diff(documents) > 1) | np.isin(documents[1:], shards))
        begin = begin[np.concatenate([[0], breaks + 1])]
        end = end[np.concatenate([breaks, [len(end) - 1]])]
        separators = np.zeros(len(starts), dtype=np.int64)
        separators[limits[1:-1]] = 1
        separators = np.cumsum(separators)
        opens, closes = starts + separators, starts + np.concatenate([[0], separators[:-1]])
    else:
        opens = closes = starts
    parts = []
    if mirror:
        parts.append(_backward(starts, begin[1::2], end[1::2], room))
        begin, end = begin[::2], end[::2]
    while len(begin):
        last = closes.searchsorted(opens[begin] + room, side="left" if fill else "right")
        last = last if fill else last - 1
        last = np.minimum(np.maximum(last, begin + 1), end)
        parts.append(np.stack([begin, last], axis=1))
        going = last < end
        begin, end = last[going], end[going]
    cut = np.concatenate(parts) if parts else np.zeros((0, 2), dtype=np.int64)
    return cut[np.argsort(cut[:, 0], kind="stable")]


def _backward(starts: Ids, begin: Ids, end: Ids, room: int) -> Ids:
    """Windows that are filled from the ends of documents on."""
    parts = [np.zeros((0, 2), dtype=np.int64)]
    while len(begin):
        first = starts.searchsorted(starts[end] - room, side="right") - 1
        first = np.maximum(np.minimum(first, end - 1), begin)
        parts.append(np.stack([first, end], axis=1))
        going = first > begin
        begin, end = begin[going], first[going]
    return np.concatenate(parts)
