"""Scores of given texts, compared with one forward pass over each text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import tiny_model

from bertkit.batch import Batch, Packed
from bertkit.errors import DataError
from bertkit.extensions.generation.score import score, score_each
from bertkit.extensions.generation.stepper import Stepper, StepperState, stepper_of
from bertkit.families import FAMILIES

VOCAB = 40


@pytest.fixture(scope="module", params=["gpt2", "llama", "lstm-lm"])
def stepper(request: pytest.FixtureRequest) -> Stepper:
    shape: dict[str, Any] = {"hidden": 32, "layers": 2, "intermediate": 64, "length": 64}
    family = FAMILIES[request.param]
    return stepper_of(tiny_model(VOCAB, "lm", family=family, spread=0.2, **shape).eval())


def full_logprobs(stepper: Stepper, ids: list[int]) -> torch.Tensor:
    """Return the log-probability of each token after the first, from one forward pass."""
    row = torch.tensor(ids)
    batch = Batch(row, torch.zeros_like(row), Packed.of([len(row)]))
    with torch.no_grad():
        logits = stepper.model(batch)["lm"].double().log_softmax(-1)
    return logits[torch.arange(len(row) - 1), row[1:]]


def expected_score(stepper: Stepper, context: list[int], ending: list[int]) -> float:
    return float(full_logprobs(stepper, [*context, *ending])[len(context) - 1 :].sum())


TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


@given(
    prompt=TOKENS,
    texts=st.lists(st.one_of(st.just([]), TOKENS), min_size=1, max_size=6),
    endings=st.lists(TOKENS, min_size=1, max_size=3),
)
@settings(max_examples=25)
def test_score_matches_full_forward_pass(
    stepper: Stepper, prompt: list[int], texts: list[list[int]], endings: list[list[int]]
) -> None:
    scores = score(stepper, np.array(prompt), texts, endings)
    for text, row in zip(texts, scores, strict=True):
        expected = [expected_score(stepper, [*prompt, *text], ending) for ending in endings]
        np.testing.assert_allclose(row, expected, atol=1e-4)
        single = score(stepper, np.array(prompt), [text], endings)
        np.testing.assert_allclose(single[0], row, atol=1e-4)


@pytest.mark.parametrize("logits", [1, 7 * VOCAB, 1 << 26])
def test_scores_in_small_batches_match_forward_pass(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch, logits: int
) -> None:
    monkeypatch.setattr("bertkit.extensions.generation.score.MAX_LOGITS", logits)
    pairs = [([5], [1, 2, 3]), ([6, 7], [4]), ([5], [9]), ([5], [8, 8]), ([6, 7], [1] * 9)]
    expected = [expected_score(stepper, *pair) for pair in pairs]
    np.testing.assert_allclose(score_each(stepper, pairs), expected, atol=1e-4)
    texts, endings = [[3], [4, 4]], [[1], [2, 2], [3] * 5]
    rows = score(stepper, np.array([5]), texts, endings)
    for text, row in zip(texts, rows, strict=True):
        expected = [expected_score(stepper, [5, *text], ending) for ending in endings]
        np.testing.assert_allclose(row, expected, atol=1e-4)


@pytest.mark.parametrize("ending", [[1], [1, 2, 3]])
def test_score_depends_on_prompt_and_text(stepper: Stepper, ending: list[int]) -> None:
    first, second = (
        score(stepper, np.array(prompt), [[4], [7]], [ending]) for prompt in ([5], [6])
    )
    assert np.abs(first - second).min() > 1e-3
    assert np.abs(first[0] - first[1]).min() > 1e-3


def test_score_runs_each_text_once(stepper: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    step_tokens: list[int] = []
    step = type(stepper).step

    def counted(self: Stepper, state: StepperState, ids: torch.Tensor) -> torch.Tensor:
        step_tokens.append(ids.numel())
        return step(self, state, ids)

    monkeypatch.setattr(type(stepper), "step", counted)
    score(stepper, np.array([5]), [[1, 2, 3], [4, 5, 6]], [[7], [8], [9]])
    assert sum(step_tokens) == 6


def test_score_rejects_too_long_text(stepper: Stepper) -> None:
    with pytest.raises(DataError, match="leaves no space for new tokens"):
        score(stepper, np.arange(30), [[1] * 36], [[1], [2]])
    score(stepper, np.arange(30), [[1] * 30], [[1], [2] * 4])
    with pytest.raises(DataError, match="leaves no space for new tokens"):
        score(stepper, np.arange(30), [[1] * 30], [[1], [2] * 5])
