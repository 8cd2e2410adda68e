"""Predictions of masked words match the fill-mask pipeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertkit.checkpoint.directory import Loaded, load
from bertkit.errors import ConfigError
from bertkit.pipelines import FillMask
from bertkit.view.explain import explain
from bertkit.view.masked_predictions import parse_word_index

TEXT = "We sat on the bank, crossing the river."
PAIR = "The bank lent us money."


@pytest.fixture(scope="module")
def loaded(bert: Path) -> Loaded:
    return load(bert)


def test_masked_words_match_fill_mask_pipeline(loaded: Loaded) -> None:
    found = explain(loaded, TEXT)
    assert found.masked is not None
    assert len(found.masked) == len(found.words)
    fill = FillMask(loaded)
    spelled = [token.piece for token in found.tokens]
    for word, bertkit_output in zip(found.words, found.masked, strict=True):
        masks = " ".join(["[MASK]"] * (word.end - word.first))
        start, end = found.tokens[word.first].start, found.tokens[word.end - 1].end
        (pipeline_output,) = fill.run(fill.prepare([TEXT[:start] + masks + TEXT[end:]]))
        for candidates, mask in zip(bertkit_output, pipeline_output, strict=True):
            assert [f.token for f in candidates] == [f.token for f in mask.candidates]
            probabilities = [f.score for f in candidates]
            np.testing.assert_allclose(probabilities, [f.score for f in mask.candidates], atol=1e-5)
    assert len({bertkit_output[0][0].score for bertkit_output in found.masked}) > 1, spelled


def test_mask_in_text_stays_masked(loaded: Loaded) -> None:
    found = explain(loaded, "[MASK] sat on the bank.")
    assert found.masked is not None
    fill = FillMask(loaded)
    (pipeline_output,) = fill.run(fill.prepare(["[MASK] sat on the [MASK]."]))
    assert [word.text for word in found.words] == ["[MASK]", "sat", "on", "the", "bank", "."]
    (bank,) = found.masked[4]
    assert [f.token for f in bank] == [f.token for f in pipeline_output[1].candidates]
    np.testing.assert_allclose(
        [f.score for f in bank], [f.score for f in pipeline_output[1].candidates], atol=1e-5
    )


def test_words_masked_together_match_pipeline(loaded: Loaded) -> None:
    text = "We sat on the bank, crossing the river."
    found = explain(loaded, text, hide=[6, 2]).hidden
    assert found is not None
    # "on" is one token, "crossing" is two.
    assert found.words == [2, 6]
    fill = FillMask(loaded)
    (masks,) = fill.run(fill.prepare(["We sat [MASK] the bank, [MASK] [MASK] the river."]))
    candidates_of_tokens = [
        token_candidates for word in found.candidates for token_candidates in word
    ]
    assert [len(word) for word in found.candidates] == [1, 2]
    for token_candidates, mask in zip(candidates_of_tokens, masks, strict=True):
        assert [c.token for c in token_candidates] == [c.token for c in mask.candidates]
        scores = [c.score for c in mask.candidates]
        assert [c.score for c in token_candidates] == pytest.approx(scores, abs=1e-5)
    separate = explain(loaded, text).masked
    assert separate is not None
    # The control: masking words separately changes the scores.
    assert separate[2][0][0].score != pytest.approx(candidates_of_tokens[0][0].score, abs=1e-7)
    assert explain(loaded, text).hidden is None


def test_hide_rejects_invalid_words(loaded: Loaded, tiny: Path) -> None:
    with pytest.raises(ConfigError, match="hide: must be between 0 and 9, got 10"):
        explain(loaded, TEXT, hide=[0, 10])
    with pytest.raises(ConfigError, match="no trained MLM head"):
        explain(tiny, "a b", hide=[0])
    for name in ("x", "-1", "", "1" * 20):
        with pytest.raises(ConfigError, match="must be the index of a word"):
            parse_word_index(name)


def test_model_without_mlm_head_has_no_predictions(tiny: Path) -> None:
    found = explain(tiny, "a b c")
    assert found.masked is None
    assert found.model.name == "model"
