"""Detection of near-duplicates with MinHash and locality-sensitive hashing.

The shingles of a document are all sequences of five words in it. Words are first converted to lower
case and stripped of accents and punctuation, and each number is replaced by 0. The signature of a
document consists of the minimum of its shingles under each of 112 random permutations. The expected
fraction of equal values in two signatures is the Jaccard similarity of the shingles. The values are
divided into 14 buckets of 8 values. Two documents count as near-duplicates if all 8 values are
equal in at least one bucket. The probability of this is 0.92 for documents with a similarity of
0.8, and 0.05 for a similarity of 0.5. datatrove, with which FineWeb was created, uses the same
parameters. Documents with fewer than five words have no shingles, and therefore no near-duplicates.

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

BATCH_SHINGLES = 512
"""Number of shingles to permute at a time. They must be few enough to stay in the CPU cache."""

MAX_CACHED_WORDS = 1 << 20
"""Maximum number of words whose hashes are cached."""

# Chinese and Japanese are written without spaces between words, so each character counts as a word.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_ASCII_WORD = re.compile(r"\w+")
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")
_NUMBER = re.compile(r"\d+")

_MIX = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
"""Constants of splitmix64 (Steele et al. 2014)."""

Keys = NDArray[np.uint64]


class Signer:
    """A function that computes signatures. Every process computes the same ones."""

    def __init__(self, seed: int = 1) -> None:
        draws = np.random.default_rng(seed)
        shape = (BUCKETS * HASHES, 1)
        self._factors = draws.integers(0, 1 << 32, shape, np.uint32) | np.uint32(1)
        self._terms = draws.integers(0, 1 << 32, shape, np.uint32)
        self._words = _WordHashes()

    def __call__(self, text: str) -> NDArray[np.uint32] | None:
        """Return the signature (112,) of a text, or None if the text is too short."""
        shingles = self.shingles(text)
        if not len(shingles):
            return None
        minima = np.full(BUCKETS * HASHES, 0xFFFFFFFF, np.uint32)
        for start in range(0, len(shingles), BATCH_SHINGLES):
            permuted = self._factors * shingles[start : start + BATCH_SHINGLES]
            permuted += self._terms
            np.minimum(minima, permuted.min(axis=1), out=minima)
        return minima

    def shingles(self, text: str) -> NDArray[np.uint32]:
        """Return a hash for each sequence of five words in a text."""
        if text.isascii():
            words = _ASCII_WORD.findall(text.lower())
        else:
            # Normalize to NFC, because a separate combining accent would split its word.
            words = _WORD.findall(unicodedata.normalize("NFC", text.lower()))
        hashes = np.fromiter(map(self._words.__getitem__, words), np.uint64, len(words))
        if len(self._words) > MAX_CACHED_WORDS:
            self._words.clear()
        count = max(len(hashes) - NGRAM + 1, 0)
        sums = np.zeros(count, np.uint64)
        # Combine the hashes of the words by Horner's rule. This is enough, because their bits are
        # already random.
        for start in range(NGRAM):
            sums *= _MIX[0]
            sums += hashes[start : start + count]
        return (sums >> np.uint64(32)).astype(np.uint32)


class _WordHashes(dict[str, int]):
    """A cache of 64-bit hashes of words.

    Words that differ only in accents or numbers have equal hashes.
    """

    def __missing__(self, word: str) -> int:
        plain = unicodedata.normalize("NFD", _NUMBER.sub("0", word))
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        self[word] = value = text_key(plain)
        return value


def text_key(text: str) -> int:
    """Return a 64-bit hash of a text.

    The probability that any two of 25 million different texts have the same hash is 2e-5.
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(values: Keys) -> Keys:
    """Hash 64-bit values, so that every output bit depends on all input bits."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))


def bucket_keys(signatures: list[NDArray[np.uint32] | None]) -> Keys:
    """Return 64-bit keys (14, documents) for buckets; 0 for documents without a signature."""
    keys = np.zeros((BUCKETS, len(signatures)), np.uint64)
    indices = [index for index, signature in enumerate(signatures) if signature is not None]
    if indices:
        minima = np.stack([signature for signature in signatures if signature is not None])
        for hashes in np.moveaxis(minima.reshape(-1, BUCKETS, HASHES), 2, 0):
            keys[:, indices] = mix(keys[:, indices] + hashes.T + np.uint64(1))
    return keys


class Clusters:
    """Clusters of documents that are duplicates of each other, directly or through other documents.

    Clusters need 8 bytes of memory per document, and 32 more during `join`, whatever the keys are.
    This is 1 GB for 25 million documents.
    """

    def __init__(self, documents: int) -> None:
        self.first = np.arange(documents)
        """For each document, the number of the first document in its cluster."""

    def join(self, keys: Keys) -> None:
        """Merge the clusters of all documents that have equal keys. The key 0 is ignored."""
        order = np.argsort(keys)
        keys = keys[order]
        same = (keys[1:] == keys[:-1]) & (keys[1:] != 0)
        left, right = order[:-1][same], order[1:][same]
        del order, keys, same
        while True:
            a, b = self.first[left], self.first[right]
            differ = a != b
            if not differ.any():
                return
            left, right, a, b = left[differ], right[differ], a[differ], b[differ]
            np.minimum.at(self.first, np.maximum(a, b), np.minimum(a, b))
            while not np.array_equal(firsts := self.first[self.first], self.first):
                self.first = firsts
