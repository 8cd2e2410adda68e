"""Learning rate schedules with warmup."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Schedule = Callable[[int], float]
"""Function that returns the learning rate for a step (from 1), as a fraction of the peak rate."""


def schedule(
    kind: Literal["linear", "wsd", "constant"], *, steps: int, warmup_steps: int, decay_steps: int
) -> Schedule:
    """Build a learning rate schedule that begins with a linear warmup.

    Args:
        kind: Course of the rate after warmup. "linear" decays the rate to 0, which it would reach
            one step after the last step (BERT). "constant" keeps the peak rate. "wsd"
            (warmup-stable-decay) keeps the peak rate, and then decays it as 1 - sqrt(x) over the
            last `decay_steps` steps (Hägele et al. 2024).
        steps: Total number of steps.
        warmup_steps: Number of warmup steps.
        decay_steps: Number of steps over which "wsd" decays the rate.

    Returns:
        The schedule.
    """
    peak = max(1, warmup_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        match kind:
            case "constant":
                return 1.0
            case "linear":
                return max(0.0, (steps - step + 1) / max(1, steps - peak + 1))
            case "wsd":
                done = max(0, step - (steps - decay_steps))
                return max(0.0, 1.0 - math.sqrt(done / max(1, decay_steps + 1)))

    return factor
