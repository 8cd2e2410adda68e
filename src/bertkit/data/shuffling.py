"""Shuffling and random numbers that depend only on the seed, the epoch, and the sample.

They do not depend on random numbers that were generated earlier. A run can therefore stop at any
step and resume with the same samples, without repeating earlier steps.
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

EVALUATION_EPOCH = 2**32
"""Epoch number that is used for held-out samples. Training never reaches this epoch."""

T = TypeVar("T")


class Purpose(enum.IntEnum):
    """Purposes of random numbers. Each purpose has a separate stream of random numbers."""

    SAMPLE = 0
    MASK = 1
    SPLIT = 2


def generator(seed: int, epoch: int, sample: int, purpose: Purpose) -> np.random.Generator:
    """Create the random number generator for a sample and a purpose.

    The generator is counter-based (Philox, Salmon et al. 2011).
    """
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 0, purpose, sample], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Permutation:
    """Random permutation of the numbers from 0 to size - 1, which is computed when it is accessed.

    A Feistel network permutes the numbers below a power of 4 that is at least `size`. A result that
    is not less than `size` is permuted again until it is. Source: Black & Rogaway 2002, "Ciphers
    with arbitrary finite domains".
    """

    ROUNDS = 6

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        self.half = np.uint64(max(1, -(-(max(size - 1, 1)).bit_length() // 2)))
        self.mask = np.uint64((1 << int(self.half)) - 1)
        keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
        self.keys = keys.random_raw(self.ROUNDS).astype(np.uint64)

    def __call__(self, index: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the values of the permutation at the given indices."""
        x = np.atleast_1d(np.asarray(index)).astype(np.uint64)
        if (x >= self.size).any():
            raise IndexError(f"indices must be less than {self.size}")
        x = self._permute(x)
        outside = x >= self.size
        while outside.any():
            x[outside] = self._permute(x[outside])
            outside = x >= self.size
        return x.astype(np.int64)

    def _permute(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> self.half, x & self.mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ key) & self.mask)
        return (left << self.half) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit integers. Source: Steele et al. 2014 (SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Shuffled(Generic[T]):
    """Base class of endless sequences of samples, which are shuffled again in every epoch."""

    seed: int

    def __len__(self) -> int:
        """Return the number of samples per epoch."""
        raise NotImplementedError

    def sample(self, epoch: int, index: int) -> T:
        """Return a sample. It depends only on the seed, the epoch, and the index."""
        raise NotImplementedError

    def with_probability(self, probability: float) -> Shuffled[T]:
        """Return a copy with a different masking probability."""
        raise NotImplementedError

    def batch(self, first: int, count: int, masked: float | None = None) -> list[T]:
        """Return consecutive samples of the endless sequence.

        Args:
            first: Index of the first sample in the sequence.
            count: Number of samples.
            masked: Masking probability. Default: the probability in the settings.
        """
        if masked is not None:
            return self.with_probability(masked).batch(first, count)
        samples: list[T] = []
        while count:
            epoch, index = divmod(first, len(self))
            part = min(count, len(self) - index)
            order = Permutation(len(self), self.seed, epoch)
            indices = order(np.arange(index, index + part))
            samples += [self.sample(epoch, int(i)) for i in indices]
            first, count = first + part, count - part
        return samples

    def evaluation(self, limit: int) -> list[T]:
        """Return up to `limit` evenly spaced samples for evaluation, which are always the same."""
        indices = np.unique(np.linspace(0, len(self) - 1, min(limit, len(self))).astype(int))
        return [self.sample(EVALUATION_EPOCH, int(index)) for index in indices]
