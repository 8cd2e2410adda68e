"""Shuffling and random numbers as pure functions of (seed, epoch, sample).

Nothing depends on earlier draws, so a run can stop anywhere, resume at once, and see the same
samples.
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

EVALUATION_EPOCH = 2**32
"""The epoch number of held-out samples; training never reaches it."""

T = TypeVar("T")


class Purpose(enum.IntEnum):
    """Each purpose has its own stream of random numbers."""

    SAMPLE = 0
    MASK = 1
    SPLIT = 2


def generator(seed: int, epoch: int, sample: int, purpose: Purpose) -> np.random.Generator:
    """The random numbers of one sample. Source: Salmon et al. 2011 (Philox, counter-based)."""
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, purpose, sample], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Permutation:
    """A random permutation of 0 … size - 1, computed on access and never stored.

    A Feistel network is a bijection on the next even power of two; values past `size` walk on
    until they fall inside. Source: Black & Rogaway 2002, "Ciphers with arbitrary finite domains".
    """

    ROUNDS = 6

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        self.half = np.uint64(max(1, -(-(max(size - 1, 1)).bit_length() // 2)))
        self.mask = np.uint64((1 << int(self.half)) - 1)
        keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
        self.keys = keys.random_raw(self.ROUNDS).astype(np.uint64)

    def __call__(self, index: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """The permuted values at these indices."""
        x = np.atleast_1d(np.asarray(index)).astype(np.uint64)
        if (x >= self.size).any():
            raise IndexError(f"the order has {self.size} places")
        x = self._round_trip(x)
        outside = x >= self.size
        while outside.any():
            x[outside] = self._round_trip(x[outside])
            outside = x >= self.size
        return x.astype(np.int64)

    def _round_trip(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> self.half, x & self.mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ key) & self.mask)
        return (left << self.half) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit finalizer that spreads every bit. Source: Steele et al. 2014 (SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Shuffled(Generic[T]):
    """Samples in an endless order, shuffled anew in every epoch."""

    seed: int

    def __len__(self) -> int:
        """Samples of one epoch."""
        raise NotImplementedError

    def sample(self, epoch: int, index: int) -> T:
        """A pure function of the seed and both numbers."""
        raise NotImplementedError

    def masked(self, share: float) -> Shuffled[T]:
        """The same samples, of whose tokens another share is masked."""
        raise NotImplementedError

    def batch(self, first: int, count: int, masked: float | None = None) -> list[T]:
        """`count` samples of the endless shuffled order, from index `first` on.

        `masked` is the share of tokens to mask, where it is not that of the settings.
        """
        if masked is not None:
            return self.masked(masked).batch(first, count)
        samples: list[T] = []
        while count:
            epoch, place = divmod(first, len(self))
            part = min(count, len(self) - place)
            order = Permutation(len(self), self.seed, epoch)
            indices = order(np.arange(place, place + part))
            samples += [self.sample(epoch, int(index)) for index in indices]
            first, count = first + part, count - part
        return samples

    def evaluation(self, limit: int) -> list[T]:
        """At most `limit` samples, evenly spaced, with draws and masks that are always the same."""
        indices = np.unique(np.linspace(0, len(self) - 1, min(limit, len(self))).astype(int))
        return [self.sample(EVALUATION_EPOCH, int(index)) for index in indices]
