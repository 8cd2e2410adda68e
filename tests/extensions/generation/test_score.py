"""Scores of given texts: those of the whole text read at once, in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
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


def whole(stepper: Stepper, ids: list[int]) -> torch.Tensor:
    """The log-probability of each token but the first, all read at once."""
    row = torch.tensor(ids)
    batch = Batch(row, torch.zeros_like(row), Packed.of([len(row)]))
    with torch.no_grad():
        logits = stepper.model(batch)["lm"].double().log_softmax(-1)
    return logits[torch.arange(len(row) - 1), row[1:]]


TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


@given(
    prompt=TOKENS,
    texts=st.lists(st.one_of(st.just([]), TOKENS), min_size=1, max_size=6),
    endings=st.lists(TOKENS, min_size=1, max_size=3),
)
def test_it_is_the_score_of_the_whole_text(
    stepper: Stepper, prompt: list[int], texts: list[list[int]], endings: list[list[int]]
) -> None:
    scores = score(stepper, np.array(prompt), texts, endings)
    for text, row in zip(texts, scores, strict=True):
        read = [*prompt, *text]
        expected = [float(whole(stepper, [*read, *e])[len(read) - 1 :].sum()) for e in endings]
        np.testing.assert_allclose(row, expected, atol=1e-4)
        alone = score(stepper, np.array(prompt), [text], endings)
        np.testing.assert_allclose(alone[0], row, atol=1e-4)


@pytest.mark.parametrize("logits", [1, 7 * VOCAB, 1 << 26])
def test_pairs_are_scored_some_at_a_time(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch, logits: int
) -> None:
    monkeypatch.setattr("bertkit.extensions.generation.score.MAX_LOGITS", logits)
    pairs = [([5], [1, 2, 3]), ([6, 7], [4]), ([5], [9]), ([5], [8, 8]), ([6, 7], [1] * 9)]
    expected = [
        float(whole(stepper, [*first, *second])[len(first) - 1 :].sum()) for first, second in pairs
    ]
    np.testing.assert_allclose(score_each(stepper, pairs), expected, atol=1e-4)
    rows = score(stepper, np.array([5]), [[3], [4, 4]], [[1], [2, 2], [3] * 5])
    read = [[5, 3], [5, 4, 4]]
    wanted = [
        [float(whole(stepper, [*r, *e])[len(r) - 1 :].sum()) for e in ([1], [2, 2], [3] * 5)]
        for r in read
    ]
    np.testing.assert_allclose(rows, wanted, atol=1e-4)


@pytest.mark.parametrize("ending", [[1], [1, 2, 3]])
def test_control_another_prompt_or_text_gives_other_scores(
    stepper: Stepper, ending: list[int]
) -> None:
    one, other = (score(stepper, np.array(prompt), [[4], [7]], [ending]) for prompt in ([5], [6]))
    assert np.abs(one - other).min() > 1e-3
    assert np.abs(one[0] - one[1]).min() > 1e-3


def test_a_text_is_read_once(stepper: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    step = type(stepper).step

    def counted(self: Stepper, state: StepperState, ids: torch.Tensor) -> torch.Tensor:
        read.append(ids.numel())
        return step(self, state, ids)

    monkeypatch.setattr(type(stepper), "step", counted)
    score(stepper, np.array([5]), [[1, 2, 3], [4, 5, 6]], [[7], [8], [9]])
    assert sum(read) == 6


def test_what_does_not_fit_is_refused(stepper: Stepper) -> None:
    with pytest.raises(DataError, match="leaves no space for new tokens"):
        score(stepper, np.arange(30), [[1] * 36], [[1], [2]])
    score(stepper, np.arange(30), [[1] * 30], [[1], [2] * 4])
    with pytest.raises(DataError, match="leaves no space for new tokens"):
        score(stepper, np.arange(30), [[1] * 30], [[1], [2] * 5])
