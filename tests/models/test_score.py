"""Scores of given texts: those of the whole text read at once, in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.batch import Batch, Packed
from bertkit.errors import DataError
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.models.score import score
from bertkit.models.stepper import CausalStepper

VOCAB = 40


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def stepper(request: pytest.FixtureRequest) -> CausalStepper:
    settings = {"vocab": VOCAB, "hidden": 32, "layers": 2, "heads": 2, "intermediate": 64}
    torch.manual_seed(0)
    model = build(FAMILIES[request.param].config({**settings, "max_positions": 64}), ("lm",))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return CausalStepper(model.eval())


def whole(stepper: CausalStepper, ids: list[int]) -> torch.Tensor:
    """The log-probability of each token but the first, all read at once."""
    row = torch.tensor(ids)
    batch = Batch(row, torch.zeros_like(row), Packed.of([len(row)]))
    with torch.no_grad():
        logits = stepper.model(batch)["lm"].double().log_softmax(-1)
    return logits[torch.arange(len(row) - 1), row[1:]]


TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


@given(prompt=TOKENS, texts=st.lists(TOKENS, min_size=1, max_size=6))
def test_it_is_the_score_of_the_whole_text(
    stepper: CausalStepper, prompt: list[int], texts: list[list[int]]
) -> None:
    found = score(stepper, np.array(prompt), texts)
    for text, scores in zip(texts, found, strict=True):
        expected = whole(stepper, [*prompt, *text])[len(prompt) - 1 :]
        np.testing.assert_allclose(scores, expected.numpy(), atol=2e-5)
        np.testing.assert_allclose(score(stepper, np.array(prompt), [text])[0], scores, atol=2e-5)


def test_control_another_prompt_gives_other_scores(stepper: CausalStepper) -> None:
    one, other = (score(stepper, np.array(prompt), [[1, 2, 3]])[0] for prompt in ([5], [6]))
    assert np.abs(one - other).max() > 1e-3


def test_what_does_not_fit_is_refused(stepper: CausalStepper) -> None:
    with pytest.raises(DataError, match="fills the model"):
        score(stepper, np.arange(30), [[1] * 40])
