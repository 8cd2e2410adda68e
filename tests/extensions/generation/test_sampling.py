"""Sampling of tokens from the distribution that the settings define."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.sampling import sample, uniform

DRAWS = 4000
NUMBERS = torch.tensor([uniform(7, n) for n in range(DRAWS)], dtype=torch.float64)


@given(
    logits=st.lists(st.floats(-4, 4), min_size=2, max_size=9),
    temperature=st.floats(0.3, 2.0),
    top_k=st.none() | st.integers(1, 9),
    top_p=st.floats(0.1, 1.0),
    min_p=st.floats(0.0, 0.9),
)
@settings(max_examples=40)
def test_frequencies_match_probabilities(
    logits: list[float], temperature: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    decoding = Decoding(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scores = torch.tensor([logits], dtype=torch.float64)
    counts = sample(scores.expand(DRAWS, -1), NUMBERS, decoding).bincount(minlength=len(logits))
    unnormalized = np.exp(np.array(logits) / temperature)
    order = np.argsort(-unnormalized, kind="stable")
    order = order[:top_k]
    probabilities = unnormalized[order] / unnormalized[order].sum()
    is_kept = (np.cumsum(probabilities) - probabilities < top_p) & (
        probabilities >= min_p * probabilities.max() - 1e-12
    )
    if len({*np.round(probabilities, 9)}) < len(probabilities):
        return  # either of two equal tokens may be kept
    expected = np.zeros(len(logits))
    expected[order[is_kept]] = probabilities[is_kept] / probabilities[is_kept].sum()
    assert (counts.numpy()[expected == 0] == 0).all()
    likely = expected * DRAWS > 5
    if likely.sum() > 1:
        observed = counts.numpy()[likely]
        weights = expected[likely] / expected[likely].sum()
        assert chisquare(observed, weights * observed.sum()).pvalue > 1e-6


@pytest.mark.parametrize("temperature", [1e-20, 1e-300, 5e-324])
def test_lowest_temperatures_select_most_probable_token(temperature: float) -> None:
    scores = torch.tensor([[1.0, 90.0, -torch.inf, 89.0]])
    assert sample(scores, NUMBERS[:1], Decoding(temperature=temperature)).tolist() == [1]


def test_random_numbers_are_uniform_and_depend_on_the_seed() -> None:
    numbers = np.array([uniform(key, n) for key in range(30) for n in range(100)])
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert len({*numbers}) == len(numbers)
    assert chisquare(np.histogram(numbers, 20, (0, 1))[0]).pvalue > 1e-4
