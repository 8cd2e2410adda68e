"""A sentence with a gap: each model reads what it can see, and no more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.parity.test_decoders import writer as writer  # the fixture
from tests.view.conftest import html_of

import bertkit
from bertkit.errors import DataError
from bertkit.extensions.classic.gap import Gap
from bertkit.extensions.classic.gap_view import EXAMPLE, NextTokenPipeline, Sides, gap_figure
from bertkit.extensions.generation.pipeline import Generate
from bertkit.pipelines import Candidate
from bertkit.view.token_text import likeliest


def test_each_reads_its_side() -> None:
    gap = Gap.of(EXAMPLE)
    assert gap.left == "I am a"
    assert gap.masked("[MASK]") == "I am a [MASK] . I like playing cricket."
    assert Gap.of("_____ is here").left == ""


@pytest.mark.parametrize("text", ["no gap", "a _ b", "two ___ of ___ them"])
def test_a_sentence_has_one_gap(text: str) -> None:
    with pytest.raises(DataError, match="write ___ once"):
        Gap.of(text)


def test_what_a_model_sees_is_marked() -> None:
    answer = [Candidate("<cat>", 0.5)]
    sides: tuple[Sides, ...] = ("the left alone", "the right alone", "both sides")
    columns = [(f"model {number}", side, answer) for number, side in enumerate(sides)]
    html = html_of(gap_figure(Gap.of("a ___ <b>."), columns))
    assert html.count("<mark>a</mark>") == 2
    assert html.count("<mark>&lt;b&gt;.</mark>") == 2
    places = [html.index(f"model {number}: from {side}") for number, side in enumerate(sides)]
    assert places == sorted(places)
    between = html[places[0] : places[1]]  # the second column's text stands before its table
    assert "<mark>&lt;b&gt;.</mark>" in between
    assert "<mark>a</mark>" not in between
    assert html.count("&lt;cat&gt;") == 3
    alone = html_of(gap_figure(Gap.of("___ b"), columns[:1]))
    assert "<mark>" not in alone
    assert "both sides" not in alone


TEXTS = ["The class", "A statement that is longer than the first", ""]


def test_candidates_are_those_of_transformers(writer: tuple[object, bertkit.Loaded]) -> None:
    theirs, loaded = writer
    pipeline, tokenizer = NextTokenPipeline(Generate(loaded)), loaded.tokenizer
    texts = TEXTS if tokenizer.ends else TEXTS[:2]  # nothing stands before a text of GPT's
    answers = pipeline.run(pipeline.prepare(texts, top=5, long="error"))
    for text, answer in zip(texts, answers, strict=True):
        ids = tokenizer.ids([text])[0]
        ids = ids if len(ids) else np.array([tokenizer.eos])
        with torch.no_grad():
            logits = theirs(torch.from_numpy(ids)[None]).logits[0, -1]  # type: ignore[operator]
        expected = likeliest(tokenizer, torch.softmax(logits, -1), 5)
        assert [one.token for one in answer] == [one.token for one in expected]
        scores = [one.score for one in expected]
        np.testing.assert_allclose([one.score for one in answer], scores, atol=1e-5)
        alone = pipeline.run(pipeline.prepare([text], top=2, long="error"))
        assert [one.token for one in alone[0]] == [one.token for one in answer[:2]]
    assert len({answer[0].score for answer in answers}) == len(texts)  # the control: texts differ


def test_a_text_that_fills_the_model_is_refused(writer: tuple[object, bertkit.Loaded]) -> None:
    with pytest.raises(bertkit.BertkitError, match="fills the model"):
        NextTokenPipeline(Generate(writer[1])).prepare(["a b " * 200], long="error")
