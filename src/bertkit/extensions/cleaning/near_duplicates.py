"""Near-duplicates among any number of documents, by MinHash and locality-sensitive hashing.

A document's shingles are its runs of five words, in small letters, without accents and punctuation,
each number as 0. For each of 112 random permutations the least shingle is kept; two documents agree
in a share of these that is the Jaccard similarity of their shingles. They are in 14 buckets of 8:
documents that agree in all 8 of a bucket are taken for near-duplicates, those with a similarity of
0.8 with probability 0.92, of 0.5 with 0.05. The numbers are datatrove's, with which FineWeb was
made. Documents of fewer than five words have no shingles, and no near-duplicates.

Sources: Broder 1997, On the resemblance and containment of documents; Leskovec et al., Mining of
Massive Datasets, chapter 3; Dietzfelbinger et al. 1997 for the permutations, ax + b modulo 2^32.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata

import numpy as np
from numpy.typing import NDArray

NGRAM, BUCKETS, HASHES = 5, 14, 8

SHINGLES_AT_ONCE = 512
"""Shingles permuted at a time, so that they stay in the cache."""

MAX_CACHED_WORDS = 1 << 20
"""Most words whose hashes are remembered."""

# Chinese and Japanese put no spaces between words: each character is one
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_ASCII_WORD = re.compile(r"\w+")
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")
_NUMBER = re.compile(r"\d+")

_MIX = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
"""Of splitmix64 (Steele et al. 2014)."""

Keys = NDArray[np.uint64]


class Signer:
    """Makes the signatures of documents: the same ones in every process."""

    def __init__(self, seed: int = 1) -> None:
        draws = np.random.default_rng(seed)
        shape = (BUCKETS * HASHES, 1)
        self._factors = draws.integers(0, 1 << 32, shape, np.uint32) | np.uint32(1)
        self._terms = draws.integers(0, 1 << 32, shape, np.uint32)
        self._words = _WordHashes()

    def __call__(self, text: str) -> NDArray[np.uint32] | None:
        """The least of each permutation, (112,); None for a text that is too short."""
        shingles = self.shingles(text)
        if not len(shingles):
            return None
        least = np.full(BUCKETS * HASHES, 0xFFFFFFFF, np.uint32)
        for start in range(0, len(shingles), SHINGLES_AT_ONCE):
            permuted = self._factors * shingles[start : start + SHINGLES_AT_ONCE]
            permuted += self._terms
            np.minimum(least, permuted.min(axis=1), out=least)
        return least

    def shingles(self, text: str) -> NDArray[np.uint32]:
        """A hash of each run of five words."""
        if text.isascii():
            words = _ASCII_WORD.findall(text.lower())
        else:  # an accent by itself would end its word
            words = _WORD.findall(unicodedata.normalize("NFC", text.lower()))
        hashes = np.fromiter(map(self._words.__getitem__, words), np.uint64, len(words))
        if len(self._words) > MAX_CACHED_WORDS:
            self._words.clear()
        runs = max(len(hashes) - NGRAM + 1, 0)
        joined = np.zeros(runs, np.uint64)
        for place in range(NGRAM):  # Horner's rule; the words' bits are random already
            joined *= _MIX[0]
            joined += hashes[place : place + runs]
        return (joined >> np.uint64(32)).astype(np.uint32)


class _WordHashes(dict[str, int]):
    """64 bits for each word; words that differ in accents or numbers alone have the same."""

    def __missing__(self, word: str) -> int:
        plain = unicodedata.normalize("NFD", _NUMBER.sub("0", word))
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        self[word] = value = text_key(plain)
        return value


def text_key(text: str) -> int:
    """64 bits for a text. Among 25 million texts, any two that differ share theirs with
    probability 2e-5.
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(values: Keys) -> Keys:
    """64 bits each, every one of which depends on all 64 that were given."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))


def bucket_keys(signatures: list[NDArray[np.uint32] | None]) -> Keys:
    """64 bits for each bucket of each document, (14, documents); 0 where there is no signature."""
    keys = np.zeros((BUCKETS, len(signatures)), np.uint64)
    signed = [place for place, one in enumerate(signatures) if one is not None]
    if signed:
        least = np.stack([one for one in signatures if one is not None])
        for hashes in np.moveaxis(least.reshape(-1, BUCKETS, HASHES), 2, 0):
            keys[:, signed] = mix(keys[:, signed] + hashes.T + np.uint64(1))
    return keys


class Clusters:
    """Documents that are duplicates of each other, directly or by others in between.

    Memory: 8 bytes a document, and 32 more while keys are read, whatever the keys are: a gigabyte
    for 25 million documents.
    """

    def __init__(self, documents: int) -> None:
        self.first = np.arange(documents)
        """Of each document the first of its cluster."""

    def join(self, keys: Keys) -> None:
        """Put together the documents of equal keys, but for those of key 0."""
        order = np.argsort(keys)
        keys = keys[order]
        same = (keys[1:] == keys[:-1]) & (keys[1:] != 0)
        left, right = order[:-1][same], order[1:][same]
        del order, keys, same
        while True:
            one, other = self.first[left], self.first[right]
            apart = one != other
            if not apart.any():
                return
            left, right, one, other = left[apart], right[apart], one[apart], other[apart]
            np.minimum.at(self.first, np.maximum(one, other), np.minimum(one, other))
            while not np.array_equal(firsts := self.first[self.first], self.first):
                self.first = firsts
