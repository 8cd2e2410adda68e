"""The most probable next tokens of causal language models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.parity.test_decoders import writer as writer  # the fixture

import bertkit
from bertkit.extensions.generation.next_token import NextToken
from bertkit.view.token_text import likeliest

TEXTS = ["The class", "A statement that is longer than the first", ""]


def test_candidates_match_transformers(writer: tuple[object, bertkit.Loaded]) -> None:
    hf_model, loaded = writer
    pipeline, tokenizer = NextToken(loaded), loaded.tokenizer
    texts = TEXTS if tokenizer.ends else TEXTS[:2]  # GPT has no token before the text
    answers = pipeline(texts, top=5)
    for text, answer in zip(texts, answers, strict=True):
        ids = tokenizer.ids([text])[0]
        ids = ids if len(ids) else np.array([tokenizer.eos])
        with torch.no_grad():
            logits = hf_model(torch.from_numpy(ids)[None]).logits[0, -1]  # type: ignore[operator]
        expected = likeliest(tokenizer, torch.softmax(logits, -1), 5)
        tokens = [candidate.token for candidate in expected]
        assert [candidate.token for candidate in answer] == tokens
        scores = [candidate.score for candidate in expected]
        np.testing.assert_allclose([candidate.score for candidate in answer], scores, atol=1e-5)
        (single,) = pipeline([text], top=2)
        assert [candidate.token for candidate in single] == tokens[:2]
    many = pipeline([texts[0]] * 300, top=2)  # more than one batch
    assert len(many) == 300
    assert {answer[0].token for answer in many} == {answers[0][0].token}
    assert pipeline(texts[0], top=2)[0][0].token == answers[0][0].token
    assert len({answer[0].score for answer in answers}) == len(texts)  # control: texts differ


def test_text_that_fills_the_model_is_rejected(writer: tuple[object, bertkit.Loaded]) -> None:
    with pytest.raises(bertkit.BertkitError, match="leaves no space for new tokens"):
        NextToken(writer[1])(["a b " * 200])
