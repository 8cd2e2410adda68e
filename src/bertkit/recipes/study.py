"""A study: several ways to do the same, each run with several seeds, as one table of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bertkit.console import say
from bertkit.metrics import plus_minus, spread

Way = Callable[[int], Mapping[str, float]]
"""Seed -> scores."""


def study(
    ways: Mapping[str, Way], seeds: Iterable[int], metric: str | None = None
) -> dict[str, dict[str, dict[str, Any]]]:
    """For each way and each of its scores the mean, the standard deviation and each seed's.

    `metric` names a score to say after each run, and of several their mean.
    """
    seeds, table = list(seeds), {}
    for way, run in ways.items():
        runs = []
        for seed in seeds:
            say(f"{way}, seed {seed}")
            scores = run(seed)
            if metric is not None:
                say(f"{way}, seed {seed}: {metric} {scores[metric]:.4f}")
            runs.append(scores)
        names = [name for name in runs[0] if all(name in scores for scores in runs)]
        table[way] = {name: spread([scores[name] for scores in runs]) for name in names}
        if metric is not None and len(seeds) > 1:
            say(f"{way}: {metric} {plus_minus(table[way][metric])}")
    return table
