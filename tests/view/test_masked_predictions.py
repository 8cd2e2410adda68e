"""What stands in the place of words is what the pipeline fills masks with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit.checkpoint.directory import Loaded, load
from bertkit.errors import ConfigError
from bertkit.view.explain import explain
from bertkit.view.masked_predictions import parse_word_index

TEXT = "We sat on the bank, crossing the river."
PAIR = "The bank lent us money."


@pytest.fixture(scope="module")
def loaded(bert: Path) -> Loaded:
    return load(bert)


def test_masked_words_are_filled_as_the_pipeline_fills_them(loaded: Loaded) -> None:
    found = explain(loaded, TEXT)
    assert found.masked is not None
    assert len(found.masked) == len(found.words)
    fill = bertkit.pipeline("fill-mask", loaded)
    spelled = [token.piece for token in found.tokens]
    for word, ours in zip(found.words, found.masked, strict=True):
        masks = " ".join(["[MASK]"] * (word.end - word.first))
        start, end = found.tokens[word.first].start, found.tokens[word.end - 1].end
        (theirs,) = fill([TEXT[:start] + masks + TEXT[end:]])
        for one, other in zip(ours, theirs, strict=True):
            assert [f.token for f in one] == [f.token for f in other.candidates]
            chances = [f.score for f in one]
            np.testing.assert_allclose(chances, [f.score for f in other.candidates], atol=1e-5)
    assert len({ours[0][0].score for ours in found.masked}) > 1, spelled


def test_a_mask_of_the_text_stays_masked_while_others_are(loaded: Loaded) -> None:
    found = explain(loaded, "[MASK] sat on the bank.")
    assert found.masked is not None
    (theirs,) = bertkit.pipeline("fill-mask", loaded)(["[MASK] sat on the [MASK]."])
    assert [word.text for word in found.words] == ["[MASK]", "sat", "on", "the", "bank", "."]
    (bank,) = found.masked[4]
    assert [f.token for f in bank] == [f.token for f in theirs[1].candidates]
    np.testing.assert_allclose(
        [f.score for f in bank], [f.score for f in theirs[1].candidates], atol=1e-5
    )


def test_words_are_masked_together(loaded: Loaded) -> None:
    text = "We sat on the bank, crossing the river."
    found = explain(loaded, text, hide=[6, 2]).hidden
    assert found is not None
    assert found.words == [2, 6]  # "on", and "crossing" in two pieces
    masks = bertkit.pipeline("fill-mask", loaded)(
        ["We sat [MASK] the bank, [MASK] [MASK] the river."]
    )[0]
    pieces = [piece for word in found.candidates for piece in word]
    assert [len(word) for word in found.candidates] == [1, 2]
    for piece, mask in zip(pieces, masks, strict=True):
        assert [one.token for one in piece] == [one.token for one in mask.candidates]
        scores = [one.score for one in mask.candidates]
        assert [one.score for one in piece] == pytest.approx(scores, abs=1e-5)
    alone = explain(loaded, text).masked
    assert alone is not None
    assert alone[2][0][0].score != pytest.approx(pieces[0][0].score, abs=1e-7)  # the control
    assert explain(loaded, text).hidden is None


def test_words_that_cannot_be_masked_are_refused(loaded: Loaded, tiny: Path) -> None:
    with pytest.raises(ConfigError, match="hide: must be between 0 and 9, got 10"):
        explain(loaded, TEXT, hide=[0, 10])
    with pytest.raises(ConfigError, match="no trained head for masked words"):
        explain(tiny, "a b", hide=[0])
    for name in ("x", "-1", "", "1" * 20):
        with pytest.raises(ConfigError, match="must be the index of a word"):
            parse_word_index(name)


def test_a_model_without_masked_words_has_none(tiny: Path) -> None:
    found = explain(tiny, "a b c")
    assert found.masked is None
    assert found.model.name == "model"
