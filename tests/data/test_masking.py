"""Masking: rates, special tokens, and word boundaries."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import SPECIALS, tiny_tokenizer
from tokenizers import Tokenizer as Core

from bertkit.data.masking import Masker, Masking
from bertkit.data.shuffling import Purpose, generator
from bertkit.errors import TokenizerError
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

WORDS = [f"w{i}" for i in range(60)] + [f"##p{i}" for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer(WORDS)


def sequence(rng: np.random.Generator, length: int) -> np.ndarray:
    """Return [CLS] … [SEP] … [SEP] with a word start after [CLS]."""
    ids = rng.integers(5, 105, length)
    ids[0], ids[-1], ids[length // 2] = 2, 3, 3
    return ids


def masked_samples(masker: Masker, count: int, length: int = 128):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    for sample in range(count):
        ids = sequence(rng, length)
        yield ids, *masker(ids, generator(0, 0, sample, Purpose.MASK))


@pytest.mark.parametrize("unit", ["token", "word", "span", "ngram"])
@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5])
def test_masking_rates_match_settings(tokenizer: Tokenizer, unit: str, rate: float) -> None:
    masker = Masker(Masking(mlm_probability=rate, unit=unit), tokenizer)  # type: ignore[arg-type]
    chosen, masked, swapped, kept, candidates, squares = 0, 0, 0, 0, 0, 0
    for ids, seen, positions in masked_samples(masker, 400):
        candidates += int((ids >= 5).sum())
        chosen += len(positions)
        masked += int((seen[positions] == 4).sum())
        same = seen[positions] == ids[positions]
        kept += int(same.sum())
        swapped += int((~same & (seen[positions] != 4)).sum())
        # Tokens that are sampled together count once: a span or a token.
        squares += (
            sum(len(run) ** 2 for run in runs(positions)) if unit == "span" else len(positions)
        )
        untouched = np.setdiff1d(np.arange(len(ids)), positions)
        assert (seen[untouched] == ids[untouched]).all()
    assert abs(chosen / candidates - rate) < 0.02
    bound = 5 * (0.16 * squares) ** 0.5 / chosen
    assert abs(masked / chosen - 0.8) < bound
    # One in a hundred random tokens equals the original token.
    assert abs(swapped / chosen - 0.1 * 0.99) < bound
    assert abs(kept / chosen - 0.1 * 1.01) < bound


def test_masking_rates_differ_with_other_settings(tokenizer: Tokenizer) -> None:
    masker = Masker(Masking(mask=0.7, random=0.2), tokenizer)
    seen = np.concatenate([s[p] for _, s, p in masked_samples(masker, 400)])
    assert abs((seen == 4).mean() - 0.8) > 5 * (0.16 / len(seen)) ** 0.5


@given(st.data())
def test_special_tokens_are_never_masked_or_inserted(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    unit = data.draw(st.sampled_from(["token", "word", "span", "ngram"]))
    masker = Masker(
        Masking(mlm_probability=data.draw(st.floats(0.01, 0.99)), unit=unit, mask=0.0, random=1.0),
        tokenizer,
    )
    ids = np.array(data.draw(st.lists(st.integers(0, 104), min_size=1, max_size=60)))
    seen, positions = masker(ids, generator(1, 2, 3, Purpose.MASK))
    ordinary = ids >= 5
    assert ordinary[positions].all()
    assert (seen[positions] >= 5).all()
    assert len(positions) >= 1 if ordinary.any() else len(positions) == 0
    assert (np.diff(positions) > 0).all()


@given(st.integers(3, 100), st.integers(0, 1000))
def test_whole_words_are_masked_together(tokenizer: Tokenizer, length: int, sample: int) -> None:
    rng = np.random.default_rng(sample)
    ids = sequence(rng, length)
    masker = Masker(Masking(mlm_probability=0.3, unit="word"), tokenizer)
    _, positions = masker(ids, generator(0, 0, sample, Purpose.MASK))
    chosen = set(positions.tolist())
    for position in range(1, length):
        # The prefix ## continues the previous token.
        joined = ids[position] >= 65 and ids[position - 1] >= 5
        if joined:
            assert (position in chosen) == (position - 1 in chosen)


def test_spans_are_longer_than_single_words(tokenizer: Tokenizer) -> None:
    def mean_length(unit: str) -> float:
        masker = Masker(Masking(unit=unit), tokenizer)  # type: ignore[arg-type]
        cuts = [1 + int((np.diff(p) > 1).sum()) for _, _, p in masked_samples(masker, 200)]
        sizes = [len(p) for _, _, p in masked_samples(masker, 200)]
        return sum(sizes) / sum(cuts)

    assert mean_length("span") > 2.0 * mean_length("token")


def runs(positions: np.ndarray) -> list[np.ndarray]:
    """Return groups of adjacent positions."""
    return np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)


def test_span_lengths_match_the_paper(tokenizer: Tokenizer) -> None:
    """The mean is 3.8 words: geometric with p = 0.2, at most ten words, renormalized."""
    chances = 0.2 * 0.8 ** np.arange(10)
    mean = float((chances * np.arange(1, 11)).sum() / chances.sum())
    assert round(mean, 3) == 3.797
    piled = np.append(chances[:9], 1 - chances[:9].sum())
    # The control truncates longer spans to ten words instead.
    control = float((piled * np.arange(1, 11)).sum())
    masker = Masker(Masking(mlm_probability=0.01, unit="span"), tokenizer)
    # Each token is a word.
    ids = np.random.default_rng(0).integers(5, 65, 20_000)
    sizes = []
    for sample in range(20):
        _, positions = masker(ids, generator(0, 0, sample, Purpose.MASK))
        sizes += [len(run) for run in runs(positions)]
    # Two adjacent spans can merge.
    assert max(sizes) <= 20
    assert abs(np.mean(sizes) - mean) < 0.3
    assert abs(np.mean(sizes) - control) > 0.3


def mixed(masker: Masker) -> float:
    """Return the fraction of contiguous chosen spans that are only partly masked."""
    found = [
        len(set((seen[run] == 4).tolist())) == 2
        for _, seen, positions in masked_samples(masker, 200)
        for run in runs(positions)
    ]
    return float(np.mean(found))


def test_spans_are_masked_together(tokenizer: Tokenizer) -> None:
    assert mixed(Masker(Masking(unit="span"), tokenizer)) == 0.0


def test_words_and_ngrams_are_masked_per_token(tokenizer: Tokenizer) -> None:
    """google-research/bert and google-research/albert also mask n-grams partly."""
    assert mixed(Masker(Masking(unit="ngram"), tokenizer)) > 0.2
    assert mixed(Masker(Masking(unit="word"), tokenizer)) > 0.1


def test_masking_is_deterministic(tokenizer: Tokenizer) -> None:
    masker = Masker(Masking(), tokenizer)
    ids = sequence(np.random.default_rng(0), 100)
    first = masker(ids, generator(3, 1, 4, Purpose.MASK))
    again = masker(ids, generator(3, 1, 4, Purpose.MASK))
    other = masker(ids, generator(3, 2, 4, Purpose.MASK))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])


def test_masking_probability_follows_schedule() -> None:
    falling = Masking(first_mlm_probability=0.3, mlm_probability=0.15)
    probabilities = [falling.probability(step, 101) for step in range(101)]
    assert (probabilities[0], probabilities[-1]) == (0.3, 0.15)
    assert probabilities[50] == pytest.approx(0.225)
    assert np.diff(probabilities) == pytest.approx([-0.0015] * 100)
    early = Masking(first_mlm_probability=0.3, mlm_probability=0.15, first_share=0.5)
    assert [early.probability(step, 100) for step in (0, 49, 50, 99)] == [0.3, 0.15, 0.15, 0.15]
    step = Masking(
        first_mlm_probability=0.15, mlm_probability=0.3, first_share=0.3, schedule="step"
    )
    assert [step.probability(n, 100) for n in (0, 29, 30, 99)] == [0.15, 0.15, 0.3, 0.3]
    assert {Masking().probability(n, 100) for n in range(100)} == {0.15}  # the control
    # A run of one step.
    assert falling.probability(0, 1) == 0.3


def test_larger_probability_masks_a_superset(tokenizer: Tokenizer) -> None:
    few = Masker(Masking(), tokenizer)
    many = few.with_probability(0.3)
    for (_, _, some), (_, _, more) in zip(
        masked_samples(few, 50), masked_samples(many, 50), strict=True
    ):
        assert (len(some), len(more)) == (19, 38)
        assert set(some) < set(more)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first_share": 0.5}, "require first_mlm_probability"),
        ({"schedule": "step"}, "require first_mlm_probability"),
        ({"first_mlm_probability": 0.3, "schedule": "step"}, "is never reached"),
        ({"first_mlm_probability": 0.3, "dupe_factor": 2}, "static masks"),
    ],
)
def test_masking_rejects_impossible_schedules(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Masking(**settings)


def test_masking_rejects_fractions_above_one() -> None:
    with pytest.raises(ValueError, match="must not exceed 1"):
        Masking(mask=0.8, random=0.3)


def test_unit_word_requires_a_pre_tokenizer(tmp_path: Path) -> None:
    spec = json.loads(train(["a b c"], kind="bpe", size=300).core.to_str())
    spec["pre_tokenizer"] = None
    plain = train(["a b c"], kind="bpe", size=300).remade(Core.from_str(json.dumps(spec)))
    with pytest.raises(TokenizerError):
        Masker(Masking(unit="word"), plain)
    assert Masker(Masking(unit="token"), plain)


def test_masker_rejects_vocabulary_without_mask_token(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS[:4], *WORDS]), encoding="utf-8")
    with pytest.raises(Exception, match="mask"):
        Masker(Masking(), Tokenizer.load(tmp_path / "vocab.txt"))
