"""Comparison of results with the golden files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.extensions.transformers_pipelines.cases import CASES, Case

import bertkit

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-4


def difference(found: Any, expected: Any) -> str:
    """Return the first difference of two results, or an empty string.

    Numbers with decimals can differ by `TOLERANCE`.
    """
    if isinstance(expected, float) and isinstance(found, float):
        return "" if abs(found - expected) <= TOLERANCE else f"{found}, expected {expected}"
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        parts = ((f"[{index}]", difference(*pair)) for index, pair in pairs)
    elif isinstance(expected, dict) and isinstance(found, dict) and [*found] == [*expected]:
        parts = ((f".{key}", difference(found[key], expected[key])) for key in expected)
    else:
        is_equal = found == expected and type(found) is type(expected)
        return "" if is_equal else f"{found!r}, expected {expected!r}"
    return next((place + text for place, text in parts if text), "")


def call(case: Case, models: Path, **changes: Any) -> Any:
    """Return the result of a call in bertkit, with other arguments than in transformers."""
    run = bertkit.pipeline(case.pipeline, models / case.model, **case.opened)
    return run(*case.inputs, **case.arguments | changes)


def read_cases(name: str) -> list[tuple[Case, Any]]:
    """Return the calls of a golden file with their results in transformers."""
    results = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return list(zip(CASES[name], results, strict=True))


def parametrize(*names: str) -> pytest.MarkDecorator:
    """Return a decorator that runs a test for each call of the golden files."""
    rows = [row for name in names for row in read_cases(name)]
    ids = [f"{name}-{number}" for name in names for number in range(len(CASES[name]))]
    return pytest.mark.parametrize(("case", "expected"), rows, ids=ids)
