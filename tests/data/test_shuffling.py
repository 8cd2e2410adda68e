"""Permutations and random generators: uniform, independent, and determined by their key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertkit.data.shuffling import Permutation, Purpose, generator


@given(st.integers(1, 3000), st.integers(0, 2**31 - 1), st.integers(0, 100))
def test_permutation_visits_indices_once(size: int, seed: int, epoch: int) -> None:
    visited = Permutation(size, seed, epoch)(np.arange(size))
    assert sorted(visited.tolist()) == list(range(size))


@given(st.integers(1, 2**40), st.integers(0, 2**31 - 1))
def test_single_indices_match_batches(size: int, seed: int) -> None:
    order = Permutation(size, seed, 0)
    indices = np.unique([0, size // 2, size - 1])
    together = order(indices)
    assert [int(order(int(index))[0]) for index in indices] == together.tolist()
    assert ((together >= 0) & (together < size)).all()


def test_seeds_and_epochs_differ() -> None:
    orders = [
        Permutation(1000, seed, epoch)(np.arange(1000))
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]
    agree = [np.mean(a == b) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(agree) < 0.02


@pytest.mark.parametrize("size", [10_000, 2**16, 2**33])
def test_order_passes_randomness_tests(size: int) -> None:
    """Neighbors are unrelated, and each block samples uniformly from all indices."""
    count = 10_000
    found = Permutation(size, 5, 2)(np.arange(count)).astype(float)
    assert abs(stats.spearmanr(found[:-1], found[1:]).statistic) < 0.05
    assert stats.kstest(found[: count // 10] / size, "uniform").pvalue > 1e-4
    assert stats.kstest(found[-count // 10 :] / size, "uniform").pvalue > 1e-4


def test_biased_order_fails_randomness_tests() -> None:
    found = np.sort(Permutation(10_000, 5, 2)(np.arange(10_000))).astype(float)
    assert abs(stats.spearmanr(found[:-1], found[1:]).statistic) > 0.9
    assert stats.kstest(found[:1000] / 10_000, "uniform").pvalue < 1e-9


def test_index_beyond_size_raises_index_error() -> None:
    with pytest.raises(IndexError, match="indices must be less than 5"):
        Permutation(5, 0, 0)(5)


def test_generators_are_independent_and_deterministic() -> None:
    keys = [(s, e, i, p) for s in (0, 1) for e in (0, 1) for i in (0, 1) for p in Purpose]
    values = [tuple(generator(*key).integers(0, 2**63, 4)) for key in keys]
    assert len(set(values)) == len(keys)
    assert values == [tuple(generator(*key).integers(0, 2**63, 4)) for key in keys]


def test_streams_do_not_overlap() -> None:
    """A million numbers of one sample do not occur at the start of the next sample."""
    long = set(generator(0, 0, 7, Purpose.MASK).integers(0, 2**63, 1_000_000).tolist())
    near = generator(0, 0, 8, Purpose.MASK).integers(0, 2**63, 1000).tolist()
    assert not long & set(near)
