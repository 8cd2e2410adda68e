"""Samples of corpora of any size, of which only one volume (a group of shards) is loaded at a time.

Memory use, and the time to start or resume a run, depend on the size of a volume and not on the
size of the corpus.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from threading import Thread
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus import Corpus
from bertkit.data.samples import SAMPLING_VERSION
from bertkit.data.shuffling import Permutation, Shuffled
from bertkit.errors import BertkitError

T = TypeVar("T")


def in_volumes(
    corpus: Corpus,
    opened: Callable[[Corpus], Shuffled[T]],
    *,
    size: Callable[[Corpus], int],
    seed: int,
) -> Shuffled[T]:
    """Return the shuffled samples of a corpus, which are loaded volume by volume.

    Args:
        corpus: The corpus.
        opened: Function that loads a volume and returns its samples.
        size: Function that estimates the number of samples in a volume from its manifest.
        seed: Random seed for the order of the volumes.
    """
    if len(corpus.volumes) == 1:
        return opened(corpus)
    return Volumes(corpus, opened, size, seed)


def sampling_version(text: object) -> int:
    """Return the version of the sampling method. A run resumes only with the same version."""
    return SAMPLING_VERSION + (isinstance(text, Corpus) and len(text.volumes) > 1)


class Volumes(Shuffled[T]):
    """Endless sequence of the samples of all volumes.

    In each round, all volumes are visited in a new random order. A volume provides `size` samples
    per round, and continues in the next round after the sample at which it stopped. All samples of
    a volume are therefore used equally often, even if their number differs from `size`. The volume
    and the samples for an index are computed without loading other volumes.
    """

    def __init__(
        self,
        corpus: Corpus,
        opened: Callable[[Corpus], Shuffled[T]],
        size: Callable[[Corpus], int],
        seed: int,
    ) -> None:
        self.corpus, self.seed, self._opened = corpus, seed, opened
        self.sizes = np.array([size(corpus.part(shards)) for shards in corpus.volumes])
        self._order = lru_cache(1)(self._order_of)
        self._open: tuple[int, Shuffled[T]] | None = None
        self._fetched = -1
        # The first volume is loaded now, so that errors are raised before training starts.
        self._volume(int(self._order(0)[0][0]))

    def __len__(self) -> int:
        """Return the number of samples in a round."""
        return int(self.sizes.sum())

    def batch(self, first: int, count: int, masked: float | None = None) -> list[T]:
        samples: list[T] = []
        while count:
            round_, index = divmod(first, len(self))
            order, ends = self._order(round_)
            at = int(np.searchsorted(ends, index, side="right"))
            volume, left = int(order[at]), int(ends[at]) - index
            size, part = int(self.sizes[volume]), min(count, left)
            samples += self._volume(volume).batch(round_ * size + size - left, part, masked)
            if at + 1 < len(order):
                self._fetch_ahead(int(order[at + 1]))
            first, count = first + part, count - part
        return samples

    def _order_of(self, round_: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the order of the volumes in a round, and the cumulative numbers of samples."""
        order = Permutation(len(self.sizes), self.seed, round_)(np.arange(len(self.sizes)))
        return order, np.cumsum(self.sizes[order])

    def _volume(self, number: int) -> Shuffled[T]:
        if self._open is None or self._open[0] != number:
            # The previous volume is released first, so that only one volume is in memory.
            self._open = None
            self._open = number, self._opened(self.corpus.part(self.corpus.volumes[number]))
        return self._open[1]

    def _fetch_ahead(self, number: int) -> None:
        """Start downloading the files of the next volume in the background."""
        if number != self._fetched:
            self._fetched = number
            volume = self.corpus.part(self.corpus.volumes[number])
            Thread(target=_quietly, args=(volume.fetch,), daemon=True).start()


def _quietly(fetch: Callable[[], None]) -> None:
    # If the download fails, the error is raised again when the volume is loaded.
    with suppress(BertkitError):
        fetch()
