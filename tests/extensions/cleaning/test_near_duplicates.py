"""MinHash: shares of shingles are estimated, near-duplicates found, the first of each kept."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator
from itertools import combinations

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


def variants(groups: int, each: int) -> Iterator[str]:
    """Texts of 200 words; in those of a group more and more words are replaced."""
    chance = random.Random(0)
    for _ in range(groups):
        original = words(chance, 200)
        for variant in range(each):
            text = list(original)
            for place in chance.sample(range(200), 2 * variant):
                text[place] = words(chance, 1)[0]
            yield " ".join(text)


def jaccard(one: str, other: str, n: int = 5) -> float:
    words = one.split(), other.split()
    a, b = ({tuple(w[i : i + n]) for i in range(len(w) - n + 1)} for w in words)
    return len(a & b) / len(a | b)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(variants(60, 8))


def test_signatures_agree_in_the_share_that_texts_have_in_common(texts: list[str]) -> None:
    def errors(n: int) -> list[float]:
        """In standard deviations of an estimate by independent permutations."""
        found = []
        for start in range(0, len(texts), 8):
            for one, other in combinations(texts[start : start + 8], 2):
                share = jaccard(one, other, n)
                agree = np.mean(SIGNER(one) == SIGNER(other))
                found.append((agree - share) / np.sqrt(share * (1 - share) / (BUCKETS * HASHES)))
        return found

    assert abs(np.mean(errors(5))) < 0.15
    assert 0.85 < np.std(errors(5)) < 1.15
    assert abs(np.mean(errors(4))) > 1  # the control: shares of shorter runs


def test_pairs_are_found_as_often_as_the_papers_say(texts: list[str]) -> None:
    """Against every pair by brute force: recall where similar, none where not."""
    keys = bucket_keys([SIGNER(text) for text in texts])
    found, expected, similar, missed = 0, 0.0, 0, 0
    for one, other in combinations(range(len(texts)), 2):
        share = jaccard(texts[one], texts[other]) if one // 8 == other // 8 else 0.0
        paired = bool((keys[:, one] == keys[:, other]).any())
        assert not paired or share > 0.2  # precision
        found += paired
        expected += 1 - (1 - share**HASHES) ** BUCKETS
        similar += share > 0.85
        missed += share > 0.85 and not paired
    assert similar > 30
    assert missed <= 0.05 * similar
    assert found == pytest.approx(expected, rel=0.15)


def test_spelling_that_does_not_matter_changes_nothing() -> None:
    one = "Élan vital: 25,000 people came to the café -- on 3 May!"
    other = "elan VITAL 7 1 people came\n\nto the (cafe) on 12 may"
    assert SIGNER.shingles(one).tolist() == SIGNER.shingles(other).tolist()
    apart = unicodedata.normalize("NFD", one)  # accents as characters of their own
    assert SIGNER.shingles(apart).tolist() == SIGNER.shingles(one).tolist()
    assert SIGNER.shingles(one).tolist() != SIGNER.shingles(f"{other} too").tolist()
    assert len(SIGNER.shingles("one two three four five")) == 1
    assert SIGNER("one two three four") is None
    assert len(SIGNER.shingles("北京大学位于北京 Peking 大学")) == 11 - 4


def test_a_signature_depends_on_nothing_but_the_text() -> None:
    text = " ".join(words(random.Random(1), 2000))  # several blocks
    fresh = Signer()
    for _ in range(3):
        fresh(" ".join(words(random.Random(2), 50)))
    assert np.array_equal(fresh(text), SIGNER(text))
    assert not np.array_equal(Signer(seed=2)(text), SIGNER(text))
    assert text_key("a") != text_key("b")


def test_the_words_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_of_each_cluster_the_first_is_known(rows: list[list[int]]) -> None:
    documents = len(rows[0]) if rows else 3
    clusters = Clusters(documents)
    for row in rows:
        clusters.join(np.array(row, np.uint64))
    groups = [{document} for document in range(documents)]
    for row in rows:
        for one, other in combinations(range(documents), 2):
            if row[one] == row[other] != 0 and groups[one] is not groups[other]:
                groups[one] |= groups[other]
                for member in groups[other]:
                    groups[member] = groups[one]
    assert clusters.first.tolist() == [min(group) for group in groups]


def test_a_long_chain_is_one_cluster() -> None:
    count = 10_000
    order = np.random.default_rng(0).permutation(count)
    clusters = Clusters(count)
    for shift in (0, 1):
        keys = np.empty(count, np.uint64)
        keys[order] = (np.arange(count) + shift) // 2 + 1
        clusters.join(keys)
    assert not clusters.first.any()
