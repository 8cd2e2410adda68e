"""A search that is watched is the same search, and its record is the whole of it."""

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


def replayed(record: list[BeamStep], decoding: Decoding) -> list[Result]:
    """The results of one request, from what was told of its steps alone."""
    beams: list[list[int]] = [[]]
    results: list[Result] = []
    for length, step in enumerate(record, 1):
        texts = [
            [*beams[beam], token] if score > MIN_SCORE / 2 else []
            for beam, token, score in zip(step.beams, step.tokens, step.scores, strict=True)
        ]
        candidates = list(zip(texts, step.scores, step.ended, strict=True))
        for text, score, ended in candidates[: decoding.beams]:
            if ended is not None and text:
                ids = text[:-1] if ended == "end" else text
                results.append((score / length**decoding.length_penalty, ids, ended))
        results = sorted(results, key=lambda one: -one[0])[: decoding.beams]
        beams = [texts[place] for place in step.kept]
    return results[: decoding.best]


@settings(max_examples=25, deadline=None)
@given(
    beams=st.integers(1, 5),
    room=st.integers(1, 12),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early=st.booleans(),
    stops=st.booleans(),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_a_record_replayed_gives_the_texts_and_scores_of_generate(
    stepper: Stepper,
    beams: int,
    room: int,
    penalty: float,
    early: bool,
    stops: bool,
    sizes: list[int],
) -> None:
    asked = prompts(*sizes)
    decoding = Decoding(
        beams=beams, best=beams, max_tokens=room, length_penalty=penalty, early_stopping=early
    )
    stop: Any = (lambda ids: ids[-1] in (7, 8)) if stops else None
    rules = Rules([3, 4], stops=stop)
    record: list[BeamStep] = []
    watched = beam_search(stepper, asked, decoding, rules, record.append)
    alone = beam_search(stepper, asked, decoding, rules)
    assert watched == alone  # who looks on changes nothing
    if beams > 1:
        assert alone == generate(stepper, asked, decoding, rules)
    for place, texts in enumerate(watched):
        own = [step for step in record if step.request == place]
        results = replayed(own, decoding)
        assert [(one.ids, one.ended) for one in texts] == [(ids, e) for _, ids, e in results]
        assert [one.score for one in texts] == [score for score, _, _ in results]


def test_control_another_order_of_beams_gives_other_texts(stepper: Stepper) -> None:
    decoding = Decoding(beams=3, best=3, max_tokens=6)
    record: list[BeamStep] = []
    request = Request(np.array([1, 2]))
    (texts,) = beam_search(stepper, [request], decoding, Rules([3]), record.append)
    swapped = [
        BeamStep(s.request, s.beams, s.tokens, s.scores, s.ended, s.kept[::-1]) for s in record
    ]
    assert [one.ids for one in texts] == [ids for _, ids, _ in replayed(record, decoding)]
    assert [one.ids for one in texts] != [ids for _, ids, _ in replayed(swapped, decoding)]


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 2000), count=st.integers(1, 12), taken=st.floats(0, 1), seed=st.integers(0)
)
def test_the_likeliest_are_those_of_topk(width: int, count: int, taken: float, seed: int) -> None:
    count = min(count, width)
    random = torch.Generator().manual_seed(seed % 2**31)
    scores = torch.randn(3, width, generator=random)
    scores[torch.rand(3, width, generator=random) < taken] = -torch.inf
    highest, places = topk(scores, count)
    assert torch.equal(highest, scores.topk(count).values)
    assert torch.equal(scores.gather(1, places), highest)
    assert all(len(set(row)) == count for row in places.tolist())
