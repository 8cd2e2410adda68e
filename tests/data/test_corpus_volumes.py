"""Corpora of several volumes: uniform sampling and random access."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.test_corpus import Documents, finish, write

from bertkit.data import corpus as corpora
from bertkit.data.corpus import Corpus
from bertkit.data.corpus_volumes import Volumes, in_volumes, sampling_version
from bertkit.data.samples import SAMPLING_VERSION, split_documents
from bertkit.data.shuffling import Shuffled

SIZES = {4: 7, 5: 3, 6: 11}
"""Number of samples by number of shards."""


class Numbers(Shuffled[tuple[tuple[int, ...], int]]):
    """Samples that contain the shards of their volume and their index."""

    def __init__(self, volume: Corpus) -> None:
        self.shards, self.seed = volume.numbers, 3

    def __len__(self) -> int:
        return SIZES[len(self.shards)]

    def sample(self, epoch: int, index: int) -> tuple[tuple[int, ...], int]:
        return self.shards, index


class Beginnings(Shuffled[int]):
    """Samples that contain the first token of each training document."""

    def __init__(self, volume: Corpus) -> None:
        self.corpus, self.seed = volume, 0
        self.documents, _ = split_documents(volume, 0.3)

    def __len__(self) -> int:
        return len(self.documents)

    def sample(self, epoch: int, index: int) -> int:
        first = self.corpus.document_starts[self.documents[index]]
        return int(self.corpus.slice(first, first + 1)[0])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Return a corpus of 14 shards, each with one document of four tokens."""
    folder = tmp_path_factory.mktemp("corpora") / "large"
    documents: Documents = [[[n, n + 20, n + 40], [n + 60]] for n in range(14)]
    return finish(folder, write(folder, documents, limit=1, batch=1))


@pytest.fixture(autouse=True)
def small_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    # This limit splits 14 shards into three volumes.
    monkeypatch.setattr(corpora, "VOLUME_TOKENS", 20)


def make_volumes(
    corpus: Corpus, seed: int = 0, more: int = 0
) -> Volumes[tuple[tuple[int, ...], int]]:
    """Return volumes that report `more` samples than they have."""
    return Volumes(corpus, Numbers, lambda v: SIZES[len(v.numbers)] + more, seed)


def volumes(large: Corpus) -> Corpus:
    # Reopening computes the volumes again.
    return Corpus.open(large.folder)


def test_shards_are_in_exactly_one_volume(large: Corpus) -> None:
    corpus = volumes(large)
    assert sorted(n for shards in corpus.volumes for n in shards) == list(range(14))
    assert sorted(map(len, corpus.volumes)) == [4, 5, 5]
    assert corpus.volumes != [tuple(range(5)), tuple(range(5, 10)), tuple(range(10, 14))]
    part = corpus.part(corpus.volumes[1])
    assert part.tokens == 4 * len(part.numbers)
    bounds = part.starts[part.document_starts]
    assert part.slice(0, 2).tolist()[0] == part.numbers[0]
    assert len(bounds) == len(part.numbers) + 1


def test_small_corpus_has_one_volume(large: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "VOLUME_TOKENS", 1000)
    corpus = volumes(large)
    assert corpus.volumes == [corpus.numbers]
    assert corpus.first_volume is corpus
    assert isinstance(in_volumes(corpus, Beginnings, size=len, seed=0), Beginnings)
    assert sampling_version(corpus) == SAMPLING_VERSION


@given(seed=st.integers(0, 2**31 - 1), more=st.integers(-2, 5), rounds=st.integers(1, 6))
def test_samples_of_a_volume_repeat_uniformly(
    large: Corpus, seed: int, more: int, rounds: int
) -> None:
    samples = make_volumes(volumes(large), seed, more)
    times = Counter(samples.batch(0, rounds * len(samples)))
    for shards in samples.corpus.volumes:
        size = SIZES[len(shards)]
        repeats = [times[shards, index] for index in range(size)]
        assert sum(repeats) == rounds * (size + more)
        assert max(repeats) - min(repeats) <= 1


@given(st.integers(0, 200), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_batches_do_not_depend_on_their_start(large: Corpus, first: int, counts: list[int]) -> None:
    together = make_volumes(volumes(large)).batch(first, sum(counts))
    begins = first + np.cumsum([0, *counts[:-1]])
    separate = [
        make_volumes(volumes(large)).batch(int(b), c) for b, c in zip(begins, counts, strict=True)
    ]
    assert together == [sample for part in separate for sample in part]


def test_volumes_are_opened_once(large: Corpus) -> None:
    opened: list[tuple[int, ...]] = []

    def record(volume: Corpus) -> Numbers:
        opened.append(volume.numbers)
        return Numbers(volume)

    corpus = volumes(large)
    samples = Volumes(corpus, record, lambda v: SIZES[len(v.numbers)], 0)
    for index in range(0, len(samples), 3):
        samples.batch(index, min(3, len(samples) - index))
    assert sorted(opened) == sorted(corpus.volumes)


def test_volumes_use_the_masking_probability(large: Corpus) -> None:
    probabilities: list[float] = []

    class Masked(Numbers):
        def with_probability(self, probability: float) -> Numbers:
            probabilities.append(probability)
            return self

    samples = Volumes(volumes(large), Masked, lambda v: SIZES[len(v.numbers)], 0)
    assert samples.batch(0, len(samples), 0.3) == samples.batch(0, len(samples))
    assert probabilities == [0.3] * len(large.volumes)


def test_rounds_and_seeds_change_the_order(large: Corpus) -> None:
    def shards(seed: int, turn: int) -> list[tuple[int, ...]]:
        samples = make_volumes(volumes(large), seed)
        return [s for s, _ in samples.batch(turn * len(samples), len(samples))]

    assert len({tuple(shards(seed, turn)) for seed in range(4) for turn in range(4)}) > 4


def test_held_out_documents_are_never_sampled(large: Corpus) -> None:
    corpus = volumes(large)
    seen = set(in_volumes(corpus, Beginnings, size=lambda v: len(v.numbers), seed=0).batch(0, 200))
    held_out = [split_documents(corpus.part(shards), 0.3)[1] for shards in corpus.volumes]
    for shards, documents in zip(corpus.volumes, held_out, strict=True):
        assert len(documents)
        assert not seen & {shards[document] for document in documents}
    assert len(seen) == 14 - sum(map(len, held_out))
    assert sampling_version(corpus) != SAMPLING_VERSION
