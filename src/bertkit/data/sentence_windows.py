"""Division of documents into windows of consecutive sentences. A window is the text of a sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus import Corpus

Ids = NDArray[np.int64]


def windows(
    corpus: Corpus, documents: Ids, capacity: int, *, across: bool, fill: bool, mirror: bool
) -> Ids:
    """Split documents into windows of consecutive sentences.

    A window contains as many sentences as fit, and at least one. The sentence in which a window
    reaches its capacity is longer than the average sentence. With `mirror`, every other document is
    therefore split from its end, so that this sentence is at the beginning of a window as often as
    at the end.

    Args:
        corpus: The corpus.
        documents: Indices of the documents.
        capacity: Number of tokens of a window.
        across: Whether windows may cross document boundaries. A separator is counted for each.
        fill: Whether a window includes the sentence that exceeds its capacity.
        mirror: Whether every other document is split from its end.

    Returns:
        First and last sentence (exclusive) of each window.

    Shapes:
        returns: (W, 2).
    """
    starts, limits = corpus.starts, corpus.document_starts
    begin, end = limits[documents], limits[documents + 1]
    if across and len(documents):
        # Adjacent documents in a shard are treated as one document.
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
        parts.append(_backward(starts, begin[1::2], end[1::2], capacity))
        begin, end = begin[::2], end[::2]
    while len(begin):
        last = closes.searchsorted(opens[begin] + capacity, side="left" if fill else "right")
        last = last if fill else last - 1
        last = np.minimum(np.maximum(last, begin + 1), end)
        parts.append(np.stack([begin, last], axis=1))
        unfinished = last < end
        begin, end = last[unfinished], end[unfinished]
    spans = np.concatenate(parts) if parts else np.zeros((0, 2), dtype=np.int64)
    return spans[np.argsort(spans[:, 0], kind="stable")]


def _backward(starts: Ids, begin: Ids, end: Ids, capacity: int) -> Ids:
    """Split documents into windows, beginning at the ends of the documents."""
    parts = [np.zeros((0, 2), dtype=np.int64)]
    while len(begin):
        first = starts.searchsorted(starts[end] - capacity, side="right") - 1
        first = np.maximum(np.minimum(first, end - 1), begin)
        parts.append(np.stack([first, end], axis=1))
        unfinished = first > begin
        begin, end = begin[unfinished], first[unfinished]
    return np.concatenate(parts)
