"""How the learning rate moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Schedule = Callable[[int], float]
"""Step (from 1) -> factor of the learning rate."""


def schedule(
    kind: Literal["linear", "wsd", "constant"], *, steps: int, warmup_steps: int, decay_steps: int
) -> Schedule:
    """linear: up, then down, to 0 one step past the last (BERT). constant: up and stay.

    wsd: up, stable, then `decay_steps` down as 1 - sqrt (Hägele et al. 2024).
    """
    top = max(1, warmup_steps)  # the step with the full rate

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        match kind:
            case "constant":
                return 1.0
            case "linear":
                return max(0.0, (steps - step + 1) / max(1, steps - top + 1))
            case "wsd":
                done = max(0, step - (steps - decay_steps))
                return max(0.0, 1.0 - math.sqrt(done / max(1, decay_steps + 1)))

    return factor
