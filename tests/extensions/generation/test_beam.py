"""Beam search: records of the steps, and top-k selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.extensions.generation.test_generate import model_of, prompts

from bertkit.extensions.generation.beam import MIN_SCORE, BeamStep, beam_search, topk
from bertkit.extensions.generation.decoding import Decoding, Ended, Rules
from bertkit.extensions.generation.generate import generate
from bertkit.extensions.generation.stepper import Request, Stepper

Result = tuple[float, list[int], Ended]


@pytest.fixture(scope="module")
def stepper() -> Stepper:
    return Stepper(model_of())


def replay(record: list[BeamStep], decoding: Decoding) -> list[Result]:
    """Return the results of one request, computed only from its recorded steps."""
    beams: list[list[int]] = [[]]
    results: list[Result] = []
    for length, step in enumerate(record, 1):
        texts = [
            [*beams[beam], token] if score > MIN_SCORE / 2 else []
            for beam, token, score in zip(step.beams, step.tokens, step.scores, strict=True)
        ]
        candidates = list(zip(texts, step.scores, step.ended, strict=True))
        for text, score, ended in candidates[: decoding.num_beams]:
            if ended is not None and text:
                ids = text[:-1] if ended == "end" else text
                results.append((score / length**decoding.length_penalty, ids, ended))
        results = sorted(results, key=lambda result: -result[0])[: decoding.num_beams]
        beams = [texts[index] for index in step.kept]
    return results[: decoding.num_return_sequences]


@settings(max_examples=25, deadline=None)
@given(
    beams=st.integers(1, 5),
    max_tokens=st.integers(1, 12),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early=st.booleans(),
    stops=st.booleans(),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_replayed_record_matches_texts_and_scores_of_search(
    stepper: Stepper,
    beams: int,
    max_tokens: int,
    penalty: float,
    early: bool,
    stops: bool,
    sizes: list[int],
) -> None:
    requests = prompts(*sizes)
    decoding = Decoding(
        num_beams=beams,
        num_return_sequences=beams,
        max_tokens=max_tokens,
        length_penalty=penalty,
        early_stopping=early,
    )
    stop: Any = (lambda ids: ids[-1] in (7, 8)) if stops else None
    rules = Rules([3, 4], stops=stop)
    record: list[BeamStep] = []
    recorded = beam_search(stepper, requests, decoding, rules, record.append)
    plain = beam_search(stepper, requests, decoding, rules)
    assert recorded == plain  # the callback does not change the result
    if beams > 1:
        assert plain == generate(stepper, requests, decoding, rules)
    for index, texts in enumerate(recorded):
        steps = [step for step in record if step.request == index]
        results = replay(steps, decoding)
        assert [(text.ids, text.ended) for text in texts] == [(ids, e) for _, ids, e in results]
        assert [text.score for text in texts] == [score for score, _, _ in results]


def test_replay_depends_on_the_order_of_beams(stepper: Stepper) -> None:
    decoding = Decoding(num_beams=3, num_return_sequences=3, max_tokens=6)
    record: list[BeamStep] = []
    request = Request(np.array([1, 2]))
    (texts,) = beam_search(stepper, [request], decoding, Rules([3]), record.append)
    swapped = [
        BeamStep(s.request, s.beams, s.tokens, s.scores, s.ended, s.kept[::-1]) for s in record
    ]
    assert [text.ids for text in texts] == [ids for _, ids, _ in replay(record, decoding)]
    assert [text.ids for text in texts] != [ids for _, ids, _ in replay(swapped, decoding)]


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 2000),
    count=st.integers(1, 12),
    masked=st.floats(0, 1),
    seed=st.integers(0),
)
def test_topk_matches_torch_topk(width: int, count: int, masked: float, seed: int) -> None:
    count = min(count, width)
    random = torch.Generator().manual_seed(seed % 2**31)
    scores = torch.randn(3, width, generator=random)
    scores[torch.rand(3, width, generator=random) < masked] = -torch.inf
    highest, indices = topk(scores, count)
    assert torch.equal(highest, scores.topk(count).values)
    assert torch.equal(scores.gather(1, indices), highest)
    assert all(len(set(row)) == count for row in indices.tolist())
