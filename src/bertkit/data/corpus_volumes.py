"""A corpus of any size, read a volume at a time: some shards that are open together.

What is in memory, and what a start or a resumption reads, is a volume, however large the corpus is.
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
    """The samples of a corpus, which `opened` makes of a volume; one volume is all of a small one.

    `size` says about how many samples a volume has, from its manifest alone.
    """
    if len(corpus.volumes) == 1:
        return opened(corpus)
    return Volumes(corpus, opened, size, seed)


def draws_of(text: object) -> int:
    """Return the version of the sampling of a text; a run resumes only with the same version."""
    return SAMPLING_VERSION + (isinstance(text, Corpus) and len(text.volumes) > 1)


class Volumes(Shuffled[T]):
    """Samples in an endless order that goes through volumes, shuffled anew in every round.

    A volume gives `size` samples a round, the next ones of its own endless order. So its samples
    are told equally often, whether it has more or fewer than that; and where a step begins follows
    from its number, without a count of what no one has opened yet.
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
        self._volume(int(self._order(0)[0][0]))  # what is wrong with it is told before a run begins

    def __len__(self) -> int:
        """Samples of one round."""
        return int(self.sizes.sum())

    def batch(self, first: int, count: int, masked: float | None = None) -> list[T]:
        samples: list[T] = []
        while count:
            turn, place = divmod(first, len(self))
            order, ends = self._order(turn)
            at = int(np.searchsorted(ends, place, side="right"))
            volume, left = int(order[at]), int(ends[at]) - place
            size, part = int(self.sizes[volume]), min(count, left)
            samples += self._volume(volume).batch(turn * size + size - left, part, masked)
            if at + 1 < len(order):
                self._fetch_ahead(int(order[at + 1]))
            first, count = first + part, count - part
        return samples

    def _order_of(self, turn: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The volumes of a round, and how many samples it has told at the end of each."""
        order = Permutation(len(self.sizes), self.seed, turn)(np.arange(len(self.sizes)))
        return order, np.cumsum(self.sizes[order])

    def _volume(self, number: int) -> Shuffled[T]:
        if self._open is None or self._open[0] != number:
            self._open = None  # before another is opened: memory holds one
            self._open = number, self._opened(self.corpus.part(self.corpus.volumes[number]))
        return self._open[1]

    def _fetch_ahead(self, number: int) -> None:
        """Let the files of the volume that comes next be copied here meanwhile, if they are not."""
        if number != self._fetched:
            self._fetched = number
            volume = self.corpus.part(self.corpus.volumes[number])
            Thread(target=_quietly, args=(volume.fetch,), daemon=True).start()


def _quietly(fetch: Callable[[], None]) -> None:
    with suppress(BertkitError):  # it is told when the volume is opened
        fetch()
