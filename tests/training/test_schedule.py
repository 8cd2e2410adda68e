"""Learning rate schedules."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.training.schedule import schedule


def values(kind: str, steps: int, warmup: int, decay: int) -> list[float]:
    plan = schedule(kind, steps=steps, warmup_steps=warmup, decay_steps=decay)  # type: ignore[arg-type]
    return [plan(step) for step in range(1, steps + 1)]


@given(
    st.sampled_from(["linear", "wsd", "constant"]),
    st.integers(1, 500),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0),
)
def test_schedule_rises_to_one_and_then_falls(
    kind: str, steps: int, warmup_share: float, decay_share: float
) -> None:
    warmup = round(warmup_share * steps)
    decay = round(decay_share * (steps - warmup))
    rates = values(kind, steps, warmup, decay)
    assert all(0.0 < value <= 1.0 for value in rates)
    top = max(warmup, 1) - 1
    assert rates[top] == pytest.approx(1.0) or (kind == "wsd" and decay == steps - warmup)
    assert all(a < b for a, b in pairwise(rates[:top]))
    assert all(a >= b for a, b in pairwise(rates[top:]))


def test_linear_starts_and_ends_near_zero() -> None:
    rates = values("linear", 100, 10, 0)
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == 1.0
    assert rates[-1] == pytest.approx(1 / 91)
    falls = [a - b for a, b in pairwise(rates[9:])]
    assert max(falls) == pytest.approx(min(falls))


def test_wsd_decays_as_one_minus_square_root() -> None:
    rates = values("wsd", 100, 10, 20)
    assert rates[9:80] == [1.0] * 71
    # Hägele et al. 2024: 1 - sqrt(done / decay). One extra step keeps the last rate above zero.
    assert rates[80:] == [pytest.approx(1 - (i / 21) ** 0.5) for i in range(1, 21)]


def test_constant_schedule_returns_one() -> None:
    assert values("constant", 20, 0, 0) == [1.0] * 20
