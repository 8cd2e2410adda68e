"""MinHash signatures, near-duplicate pairs, and clusters."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.extensions.cleaning.near_duplicates import (
    BUCKETS,
    HASHES,
    Clusters,
    Signer,
    bucket_keys,
    text_key,
)

SIGNER = Signer()


def words(chance: random.Random, count: int) -> list[str]:
    return ["".join(chance.choices("abcdefghij", k=7)) for _ in range(count)]


def variants(groups: int, per_group: int) -> Iterator[str]:
    """Yield groups of 200-word texts; each variant of a group has more words replaced."""
    chance = random.Random(0)
    for _ in range(groups):
        original = words(chance, 200)
        for variant in range(per_group):
            text = list(original)
            for index in chance.sample(range(200), 2 * variant):
                text[index] = words(chance, 1)[0]
            yield " ".join(text)


def jaccard(first: str, second: str, n: int = 5) -> float:
    words = first.split(), second.split()
    a, b = ({tuple(w[i : i + n]) for i in range(len(w) - n + 1)} for w in words)
    return len(a & b) / len(a | b)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(variants(60, 8))


@pytest.fixture(scope="module")
def signatures(texts: list[str]) -> list[Any]:
    return [SIGNER(text) for text in texts]


def test_signatures_estimate_jaccard_similarity(texts: list[str], signatures: list[Any]) -> None:
    def errors(n: int) -> list[float]:
        """Return errors in standard deviations of independent permutations."""
        found = []
        for start in range(0, len(texts), 8):
            for first, second in combinations(range(start, start + 8), 2):
                similarity = jaccard(texts[first], texts[second], n)
                estimate = np.mean(signatures[first] == signatures[second])
                deviation = np.sqrt(similarity * (1 - similarity) / (BUCKETS * HASHES))
                found.append((estimate - similarity) / deviation)
        return found

    found = errors(5)
    assert abs(np.mean(found)) < 0.15
    assert 0.85 < np.std(found) < 1.15
    assert abs(np.mean(errors(4))) > 1  # Control: the similarity of 4-word shingles differs.


def test_pair_recall_matches_theory(texts: list[str], signatures: list[Any]) -> None:
    """Compare with brute force over all pairs: recall of similar pairs, and precision."""
    keys = bucket_keys(signatures)
    found, expected, similar, missed = 0, 0.0, 0, 0
    for first, second in combinations(range(len(texts)), 2):
        similarity = jaccard(texts[first], texts[second]) if first // 8 == second // 8 else 0.0
        paired = bool((keys[:, first] == keys[:, second]).any())
        assert not paired or similarity > 0.2  # precision
        found += paired
        expected += 1 - (1 - similarity**HASHES) ** BUCKETS
        similar += similarity > 0.85
        missed += similarity > 0.85 and not paired
    assert similar > 30
    assert missed <= 0.05 * similar
    assert found == pytest.approx(expected, rel=0.15)


def test_shingles_ignore_case_accents_digits_and_punctuation() -> None:
    first = "Élan vital: 25,000 people came to the café -- on 3 May!"
    second = "elan VITAL 7 1 people came\n\nto the (cafe) on 12 may"
    assert SIGNER.shingles(first).tolist() == SIGNER.shingles(second).tolist()
    decomposed = unicodedata.normalize("NFD", first)  # Accents are separate characters.
    assert SIGNER.shingles(decomposed).tolist() == SIGNER.shingles(first).tolist()
    assert SIGNER.shingles(first).tolist() != SIGNER.shingles(f"{second} too").tolist()
    assert len(SIGNER.shingles("one two three four five")) == 1
    assert SIGNER("one two three four") is None
    assert len(SIGNER.shingles("北京大学位于北京 Peking 大学")) == 11 - 4


def test_signature_depends_only_on_text() -> None:
    text = " ".join(words(random.Random(1), 2000))  # several blocks
    new_signer = Signer()
    for _ in range(3):
        new_signer(" ".join(words(random.Random(2), 50)))
    assert np.array_equal(new_signer(text), SIGNER(text))
    assert not np.array_equal(Signer(seed=2)(text), SIGNER(text))
    assert text_key("a") != text_key("b")


def test_signer_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from bertkit.extensions.cleaning import near_duplicates

    monkeypatch.setattr(near_duplicates, "MAX_CACHED_WORDS", 100)
    signer = Signer()
    for seed in range(5):
        text = " ".join(words(random.Random(seed), 90))
        assert np.array_equal(signer(text), SIGNER(text))
        assert len(signer._words) <= 100


KEYS = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), max_size=4)
)


@given(KEYS)
def test_clusters_record_first_document_of_each(rows: list[list[int]]) -> None:
    documents = len(rows[0]) if rows else 3
    clusters = Clusters(documents)
    for row in rows:
        clusters.join(np.array(row, np.uint64))
    groups = [{document} for document in range(documents)]
    for row in rows:
        for first, second in combinations(range(documents), 2):
            if row[first] == row[second] != 0 and groups[first] is not groups[second]:
                groups[first] |= groups[second]
                for member in groups[second]:
                    groups[member] = groups[first]
    assert clusters.first.tolist() == [min(group) for group in groups]


def test_long_chain_becomes_one_cluster() -> None:
    count = 10_000
    order = np.random.default_rng(0).permutation(count)
    clusters = Clusters(count)
    for shift in (0, 1):
        keys = np.empty(count, np.uint64)
        keys[order] = (np.arange(count) + shift) // 2 + 1
        clusters.join(keys)
    assert not clusters.first.any()
