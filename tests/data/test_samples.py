"""Pretraining samples: pairs, windows, lengths, and determinism."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import SPECIALS, tiny_tokenizer

from bertkit.batch import split_by_tokens
from bertkit.data.collate import collate
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.samples import Sample, Samples, Sampling, split_documents
from bertkit.errors import DataError
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer

# The first word follows the full stop.
# The id of the first word, which follows the id of the full stop.
FIRST = len(SPECIALS) + 1
DOCUMENTS, SENTENCES = 12, 30
CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Return documents whose words state their position: `d3s17` is in document 3, sentence 17."""
    folder = tmp_path_factory.mktemp("corpus")
    names = [f"d{d}s{s}" for d in range(DOCUMENTS) for s in range(SENTENCES)]
    with (folder / "text.jsonl").open("w", encoding="utf-8") as file:
        for d in range(DOCUMENTS):
            lines = [
                " ".join([f"d{d}s{s}"] * (1 + (7 * s + 3 * d) % 19)) + "." for s in range(SENTENCES)
            ]
            file.write(json.dumps({"text": "\n\n".join(lines)}) + "\n")
    tokenizer = tiny_tokenizer([".", *names])
    return prepare([folder / "text.jsonl"], tokenizer=tokenizer, out=folder / "out", processes=1)


@pytest.fixture(scope="module")
def tokenizer(corpus: Corpus) -> Tokenizer:
    return corpus.tokenizer()


def unmasked_ids(sample: Sample) -> np.ndarray:
    ids = sample.ids.copy()
    ids[sample.masked_positions] = sample.labels
    return ids


def sentences(ids: np.ndarray) -> list[int]:
    """Return the sentence numbers of a span of words, each once and in order."""
    words = ids[ids >= FIRST] - FIRST
    return words[np.flatnonzero(np.diff(words, prepend=-1))].tolist()


def parts(sample: Sample) -> list[list[int]]:
    ids = unmasked_ids(sample)
    return [sentences(ids[sample.types == t]) for t in range(sample.types.max() + 1)]


def make(corpus: Corpus, tokenizer: Tokenizer, *, seed: int = 0, **sampling: object) -> Samples:
    settings = Sampling(**{"length": 64, **sampling})  # type: ignore[arg-type]
    return Samples(corpus, tokenizer, settings, Masking(), seed=seed)


def test_corpus_has_expected_size(corpus: Corpus) -> None:
    assert corpus.documents == DOCUMENTS
    assert corpus.sentences == DOCUMENTS * SENTENCES


@pytest.mark.parametrize("pairs", ["nsp", "sop", "none"])
def test_samples_are_well_formed(corpus: Corpus, tokenizer: Tokenizer, pairs: str) -> None:
    samples = make(corpus, tokenizer, pairs=pairs)
    for sample in samples.batch(0, 200):
        ids = unmasked_ids(sample)
        assert len(ids) <= 64
        assert ids[0] == CLS
        assert ids[-1] == SEP
        seps = np.flatnonzero(ids == SEP)
        assert len(seps) == (1 if pairs == "none" else 2)
        expected = np.zeros(len(ids), dtype=int)
        if pairs != "none":
            expected[seps[0] + 1 :] = 1
        assert sample.types.tolist() == expected.tolist()
        assert (ids[sample.masked_positions] > 4).all()
        assert (sample.pair is None) == (pairs == "none")


def test_half_of_nsp_pairs_are_true(corpus: Corpus, tokenizer: Tokenizer) -> None:
    sampled = make(corpus, tokenizer, pairs="nsp").batch(0, 2000)
    assert abs(np.mean([s.pair for s in sampled]) - 0.5) < 5 * 0.5 / 2000**0.5
    for sample in sampled:
        a, b = parts(sample)
        if not a or not b:
            continue
        if sample.pair == 0:
            # A sentence between them may have been truncated.
            assert a[-1] <= b[0]
            assert a[-1] // SENTENCES == b[0] // SENTENCES
        else:
            assert a[0] // SENTENCES != b[0] // SENTENCES
        for part in (a, b):
            assert part == list(range(part[0], part[-1] + 1))
            assert part[0] // SENTENCES == part[-1] // SENTENCES


def test_half_of_sop_pairs_are_swapped(corpus: Corpus, tokenizer: Tokenizer) -> None:
    sampled = make(corpus, tokenizer, pairs="sop").batch(0, 2000)
    assert abs(np.mean([s.pair for s in sampled]) - 0.5) < 5 * 0.5 / 2000**0.5
    for sample in sampled:
        a, b = parts(sample) if sample.pair == 0 else parts(sample)[::-1]
        if a and b:
            assert a[-1] <= b[0]
            assert a[0] // SENTENCES == b[-1] // SENTENCES


def test_epoch_reads_each_sentence_once(corpus: Corpus, tokenizer: Tokenizer) -> None:
    samples = make(corpus, tokenizer, pairs="none", short_seq_probability=0.0)
    read = [s for sample in samples.batch(0, len(samples)) for s in parts(sample)[0]]
    assert sorted(read) == list(range(corpus.sentences))


def test_cross_documents_option_crosses_document_boundaries(
    corpus: Corpus, tokenizer: Tokenizer
) -> None:
    def crossing(across: bool) -> int:
        samples = make(
            corpus, tokenizer, pairs="none", cross_documents=across, short_seq_probability=0.0
        )
        found = [parts(sample)[0] for sample in samples.batch(0, len(samples))]
        assert sorted(s for part in found for s in part) == list(range(corpus.sentences))
        return sum(part[0] // SENTENCES != part[-1] // SENTENCES for part in found)

    assert crossing(False) == 0
    assert crossing(True) > 0


def test_cross_document_samples_separate_documents(corpus: Corpus, tokenizer: Tokenizer) -> None:
    samples = make(corpus, tokenizer, pairs="none", cross_documents=True)
    inside = 0
    for sample in samples.batch(0, 2 * len(samples)):
        ids = unmasked_ids(sample)
        assert len(ids) <= 64
        documents = (ids[ids >= FIRST] - FIRST) // SENTENCES
        inside += len(set(documents.tolist())) - 1
        for position in np.flatnonzero(ids[:-1] == SEP):
            # A word precedes its full stop.
            before, after = ids[position - 2], ids[position + 1]
            assert (before - FIRST) // SENTENCES < (after - FIRST) // SENTENCES
        assert (ids[1:-1] == SEP).sum() == len(set(documents.tolist())) - 1
    assert inside > 0


def test_short_samples_match_their_probability(corpus: Corpus, tokenizer: Tokenizer) -> None:
    def mean(short: float) -> float:
        sampled = make(corpus, tokenizer, pairs="none", short_seq_probability=short).batch(0, 1000)
        return float(np.mean([len(sample) for sample in sampled]))

    full, half, all_short = mean(0.0), mean(0.5), mean(1.0)
    assert all_short < half < full
    assert abs(half - (full + all_short) / 2) < 2.0


def equal(a: Sample, b: Sample) -> bool:
    same = (
        np.array_equal(getattr(a, n), getattr(b, n)) for n in ("ids", "types", "masked_positions")
    )
    return all(same) and a.pair == b.pair


@settings(max_examples=30)
@given(st.integers(0, 500), st.integers(1, 60), st.integers(0, 59))
def test_batches_do_not_depend_on_their_start(
    corpus: Corpus, tokenizer: Tokenizer, first: int, count: int, skip: int
) -> None:
    """A resumed run or one of several processes reads identical samples."""
    samples = make(corpus, tokenizer)
    together = samples.batch(first, count)
    skip = min(skip, count - 1)
    assert all(
        equal(a, b)
        for a, b in zip(together[skip:], samples.batch(first + skip, count - skip), strict=True)
    )


def test_static_masks_repeat_after_dupe_factor(corpus: Corpus, tokenizer: Tokenizer) -> None:
    samples = make(corpus, tokenizer)
    assert not equal(samples.sample(0, 3), samples.sample(1, 3))
    static = Samples(corpus, tokenizer, Sampling(length=64), Masking(dupe_factor=2))
    assert equal(static.sample(0, 3), static.sample(2, 3))
    assert not equal(static.sample(0, 3), static.sample(1, 3))


def test_masking_probability_changes_only_masks(corpus: Corpus, tokenizer: Tokenizer) -> None:
    samples = make(corpus, tokenizer)
    plain, more = samples.batch(5, 20), samples.batch(5, 20, 0.5)
    assert all(
        np.array_equal(unmasked_ids(a), unmasked_ids(b)) for a, b in zip(plain, more, strict=True)
    )
    assert sum(len(s.labels) for s in more) > 3 * sum(len(s.labels) for s in plain)
    # The result depends only on index and probability, and the samples are unchanged.
    assert all(map(equal, samples.batch(5, 20, 0.5), more))
    assert all(map(equal, samples.batch(5, 20), plain))
    assert all(map(equal, samples.batch(5, 20, 0.15), plain))


def test_seeds_give_different_samples(corpus: Corpus, tokenizer: Tokenizer) -> None:
    first, second = make(corpus, tokenizer, seed=1), make(corpus, tokenizer, seed=2)
    assert not any(
        equal(a, b) for a, b in zip(first.batch(0, 20), second.batch(0, 20), strict=True)
    )


def test_single_token_documents_are_accepted(tmp_path: Path) -> None:
    """Documents of one token have an empty segment B, true or false."""
    texts = ["a", ".", "a a", "a\n\na", "a a a.\n\na", "."]
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "text.jsonl").write_text("".join(lines), encoding="utf-8")
    tokenizer = tiny_tokenizer(".a")
    few = prepare([tmp_path / "text.jsonl"], tokenizer=tokenizer, out=tmp_path / "o", processes=1)
    for pairs in ("nsp", "sop"):
        samples = make(few, tokenizer, pairs=pairs)
        for sample in samples.batch(0, 60):
            assert (unmasked_ids(sample) == SEP).sum() == 2


def test_evaluation_is_deterministic(corpus: Corpus, tokenizer: Tokenizer) -> None:
    first = make(corpus, tokenizer).evaluation(10)
    again = make(corpus, tokenizer).evaluation(10)
    assert len(first) == 10
    assert all(equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_held_out_split_is_disjoint_and_bounded(corpus: Corpus, share: float) -> None:
    learn, held_out = split_documents(corpus, share)
    assert sorted([*learn, *held_out]) == list(range(DOCUMENTS))
    assert len(held_out) >= 2
    assert len(learn) >= 2
    assert np.array_equal(held_out, split_documents(corpus, share)[1])
    sizes = np.diff(corpus.starts[corpus.document_starts])
    smallest = np.sort(sizes)[:2].sum()
    assert sizes[held_out].sum() <= max(share * corpus.tokens, smallest)


def test_zero_fraction_holds_out_nothing(corpus: Corpus) -> None:
    assert len(split_documents(corpus, 0.0)[1]) == 0


def test_nsp_rejects_a_single_document(corpus: Corpus, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="requires at least 2 documents, got 1"):
        Samples(corpus, tokenizer, Sampling(), Masking(), documents=np.array([3]))


@pytest.mark.parametrize("budget", [64, 200, 10_000])
def test_batches_contain_each_sample_within_budget(
    corpus: Corpus, tokenizer: Tokenizer, budget: int
) -> None:
    sampled = make(corpus, tokenizer).batch(0, 50)
    batches = collate(sampled, head="nsp", max_batch_tokens=budget)
    assert all(batch.layout.total <= budget for batch in batches)
    rows = [
        (ids.tolist(), types.tolist(), int(pair))
        for batch in batches
        for ids, types, pair in zip(
            batch.ids.split(list(batch.layout.lengths)),
            batch.types.split(list(batch.layout.lengths)),
            batch.targets["nsp"],
            strict=True,
        )
    ]
    assert sorted(rows) == sorted((s.ids.tolist(), s.types.tolist(), s.pair) for s in sampled)
    for batch in batches:
        assert batch.token_indices is not None
        assert len(batch.token_indices) == len(batch.targets["mlm"])
    labels = sorted(x for batch in batches for x in batch.targets["mlm"].tolist())
    assert labels == sorted(x for s in sampled for x in s.labels.tolist())


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 100))
def test_split_by_tokens_keeps_order(sizes: list[int], budget: int) -> None:
    groups = [sizes[cut] for cut in split_by_tokens(sizes, budget)]
    assert [size for group in groups for size in group] == sizes
    assert all(sum(group) <= budget or len(group) == 1 for group in groups)
