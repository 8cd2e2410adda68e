"""Masks: the rates hold, specials are never chosen, every sequence has one, words stay whole."""

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
    """[CLS] … [SEP] … [SEP], beginning with a word start."""
    ids = rng.integers(5, 105, length)
    ids[0], ids[-1], ids[length // 2] = 2, 3, 3
    return ids


def drawn(masker: Masker, count: int, length: int = 128):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    for sample in range(count):
        ids = sequence(rng, length)
        yield ids, *masker(ids, generator(0, 0, sample, Purpose.MASK))


@pytest.mark.parametrize("unit", ["token", "word", "span", "ngram"])
@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5])
def test_rates_hold(tokenizer: Tokenizer, unit: str, rate: float) -> None:
    masker = Masker(Masking(mlm_probability=rate, unit=unit), tokenizer)  # type: ignore[arg-type]
    chosen, masked, swapped, kept, candidates, squares = 0, 0, 0, 0, 0, 0
    for ids, seen, places in drawn(masker, 400):
        candidates += int((ids >= 5).sum())
        chosen += len(places)
        masked += int((seen[places] == 4).sum())
        same = seen[places] == ids[places]
        kept += int(same.sum())
        swapped += int((~same & (seen[places] != 4)).sum())
        # what is drawn at once counts once: a span, or a token
        squares += sum(len(run) ** 2 for run in runs(places)) if unit == "span" else len(places)
        untouched = np.setdiff1d(np.arange(len(ids)), places)
        assert (seen[untouched] == ids[untouched]).all()
    assert abs(chosen / candidates - rate) < 0.02
    bound = 5 * (0.16 * squares) ** 0.5 / chosen
    assert abs(masked / chosen - 0.8) < bound
    # one in a hundred random pieces is the one that stood there
    assert abs(swapped / chosen - 0.1 * 0.99) < bound
    assert abs(kept / chosen - 0.1 * 1.01) < bound


def test_control_another_share_fails(tokenizer: Tokenizer) -> None:
    masker = Masker(Masking(mask=0.7, random=0.2), tokenizer)
    seen = np.concatenate([s[p] for _, s, p in drawn(masker, 400)])
    assert abs((seen == 4).mean() - 0.8) > 5 * (0.16 / len(seen)) ** 0.5


@given(st.data())
def test_specials_are_never_chosen_or_drawn(tokenizer: Tokenizer, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(["token", "word", "span", "ngram"]))
    masker = Masker(
        Masking(mlm_probability=data.draw(st.floats(0.01, 0.99)), unit=unit, mask=0.0, random=1.0),
        tokenizer,
    )
    ids = np.array(data.draw(st.lists(st.integers(0, 104), min_size=1, max_size=60)))
    seen, places = masker(ids, generator(1, 2, 3, Purpose.MASK))
    ordinary = ids >= 5
    assert ordinary[places].all()
    assert (seen[places] >= 5).all()
    assert len(places) >= 1 if ordinary.any() else len(places) == 0
    assert (np.diff(places) > 0).all()


@given(st.integers(3, 100), st.integers(0, 1000))
def test_words_stay_whole(tokenizer: Tokenizer, length: int, sample: int) -> None:
    rng = np.random.default_rng(sample)
    ids = sequence(rng, length)
    masker = Masker(Masking(mlm_probability=0.3, unit="word"), tokenizer)
    _, places = masker(ids, generator(0, 0, sample, Purpose.MASK))
    chosen = set(places.tolist())
    for place in range(1, length):
        joined = ids[place] >= 65 and ids[place - 1] >= 5  # ## continues an ordinary piece
        if joined:
            assert (place in chosen) == (place - 1 in chosen)


def test_spans_are_longer_than_single_words(tokenizer: Tokenizer) -> None:
    def stretches(unit: str) -> float:
        masker = Masker(Masking(unit=unit), tokenizer)  # type: ignore[arg-type]
        cuts = [1 + int((np.diff(p) > 1).sum()) for _, _, p in drawn(masker, 200)]
        sizes = [len(p) for _, _, p in drawn(masker, 200)]
        return sum(sizes) / sum(cuts)

    assert stretches("span") > 2.0 * stretches("token")


def runs(places: np.ndarray) -> list[np.ndarray]:
    """Places that stand side by side."""
    return np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)


def test_spans_have_the_lengths_of_their_paper(tokenizer: Tokenizer) -> None:
    """3.8 words: geometric with p = 0.2, cut at ten and made to add up to one again."""
    chances = 0.2 * 0.8 ** np.arange(10)
    mean = float((chances * np.arange(1, 11)).sum() / chances.sum())
    assert round(mean, 3) == 3.797
    piled = np.append(chances[:9], 1 - chances[:9].sum())
    control = float((piled * np.arange(1, 11)).sum())  # longer ones cut to ten
    masker = Masker(Masking(mlm_probability=0.01, unit="span"), tokenizer)
    ids = np.random.default_rng(0).integers(5, 65, 20_000)  # every piece a word
    sizes = []
    for sample in range(20):
        _, places = masker(ids, generator(0, 0, sample, Purpose.MASK))
        sizes += [len(run) for run in runs(places)]
    assert max(sizes) <= 20  # two that touch
    assert abs(np.mean(sizes) - mean) < 0.3
    assert abs(np.mean(sizes) - control) > 0.3


def mixed(masker: Masker) -> float:
    """Of the stretches of chosen tokens, how many are masked in part."""
    found = [
        len(set((seen[run] == 4).tolist())) == 2
        for _, seen, places in drawn(masker, 200)
        for run in runs(places)
    ]
    return float(np.mean(found))


def test_a_span_is_masked_as_one(tokenizer: Tokenizer) -> None:
    assert mixed(Masker(Masking(unit="span"), tokenizer)) == 0.0


def test_control_words_and_ngrams_are_drawn_token_by_token(tokenizer: Tokenizer) -> None:
    """As in google-research/bert and google-research/albert, whose n-grams are mixed alike."""
    assert mixed(Masker(Masking(unit="ngram"), tokenizer)) > 0.2
    assert mixed(Masker(Masking(unit="word"), tokenizer)) > 0.1


def test_the_same_key_masks_the_same(tokenizer: Tokenizer) -> None:
    masker = Masker(Masking(), tokenizer)
    ids = sequence(np.random.default_rng(0), 100)
    first = masker(ids, generator(3, 1, 4, Purpose.MASK))
    again = masker(ids, generator(3, 1, 4, Purpose.MASK))
    other = masker(ids, generator(3, 2, 4, Purpose.MASK))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])


def test_the_share_may_change_over_a_run() -> None:
    falling = Masking(first_mlm_probability=0.3, mlm_probability=0.15)
    shares = [falling.probability(step, 101) for step in range(101)]
    assert (shares[0], shares[-1]) == (0.3, 0.15)
    assert shares[50] == pytest.approx(0.225)
    assert np.diff(shares) == pytest.approx([-0.0015] * 100)
    early = Masking(first_mlm_probability=0.3, mlm_probability=0.15, first_share=0.5)
    assert [early.probability(step, 100) for step in (0, 49, 50, 99)] == [0.3, 0.15, 0.15, 0.15]
    step = Masking(
        first_mlm_probability=0.15, mlm_probability=0.3, first_share=0.3, schedule="step"
    )
    assert [step.probability(n, 100) for n in (0, 29, 30, 99)] == [0.15, 0.15, 0.3, 0.3]
    assert {Masking().probability(n, 100) for n in range(100)} == {0.15}  # the control
    assert falling.probability(0, 1) == 0.3  # a run of one step


def test_another_share_masks_the_same_tokens_and_more(tokenizer: Tokenizer) -> None:
    few = Masker(Masking(), tokenizer)
    many = few.with_probability(0.3)
    for (_, _, some), (_, _, more) in zip(drawn(few, 50), drawn(many, 50), strict=True):
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
def test_a_schedule_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Masking(**settings)


def test_impossible_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="must not exceed 1"):
        Masking(mask=0.8, random=0.3)


def test_pieces_are_masked_where_words_cannot_be_told(tmp_path: Path) -> None:
    spec = json.loads(train(["a b c"], kind="bpe", size=300).core.to_str())
    spec["pre_tokenizer"] = None
    plain = train(["a b c"], kind="bpe", size=300).remade(Core.from_str(json.dumps(spec)))
    with pytest.raises(TokenizerError):
        Masker(Masking(unit="word"), plain)
    assert Masker(Masking(unit="token"), plain)


def test_a_vocabulary_without_mask_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIALS[:4], *WORDS]), encoding="utf-8")
    with pytest.raises(Exception, match="mask"):
        Masker(Masking(), Tokenizer.load(tmp_path / "vocab.txt"))
