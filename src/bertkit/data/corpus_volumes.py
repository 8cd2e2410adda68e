"""Corpora of any size, loaded one volume (group of shards) at a time.

Memory use and the time to start or resume a run depend on the size of a volume, not of the corpus.
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
    """Return the samples of a corpus. A small corpus is a single volume.

    Args:
        corpus: The corpus.
        opened: Function that returns the samples of a volume.
        size: Function that estimates the number of samples of a volume from its manifest.
        seed: Seed of the order of the volumes.
    """
    if len(corpus.volumes) == 1:
        return opened(corpus)
    return Volumes(corpus, opened, size, seed)


def sampling_version(text: object) -> int:
    """Return the version of the sampling of a text; a run resumes only with the same version."""
    return SAMPLING_VERSION + (isinstance(text, Corpus) and len(text.volumes) > 1)


class Volumes(Shuffled[T]):
    """Samples in an endless order that visits all volumes, shuffled again in every round.

    In each round, a volume contributes `size` samples, which continue its own endless order. All
    samples of a volume are therefore used equally often, even if their number differs from `size`.
    The position of a step follows from its index, without loading any volume.
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
        # Load the first volume now, so that errors surface before training starts.
        self._volume(int(self._order(0)[0][0]))

    def __len__(self) -> int:
        """Return the number of samples per round."""
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
        """Return the volumes of a round, and the cumulative number of their samples."""
        order = Permutation(len(self.sizes), self.seed, round_)(np.arange(len(self.sizes)))
        return order, np.cumsum(self.sizes[order])

    def _volume(self, number: int) -> Shuffled[T]:
        if self._open is None or self._open[0] != number:
            # Release the previous volume first: memory holds one volume.
            self._open = None
            self._open = number, self._opened(self.corpus.part(self.corpus.volumes[number]))
        return self._open[1]

    def _fetch_ahead(self, number: int) -> None:
        """Start to download the files of the next volume in the background."""
        if number != self._fetched:
            self._fetched = number
            volume = self.corpus.part(self.corpus.volumes[number])
            Thread(target=_quietly, args=(volume.fetch,), daemon=True).start()


def _quietly(fetch: Callable[[], None]) -> None:
    # The error is raised when the volume is loaded.
    with suppress(BertkitError):
        fetch()
