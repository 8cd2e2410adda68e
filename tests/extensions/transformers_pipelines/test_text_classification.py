"""Labels of texts equal transformers 4.57."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.extensions.transformers_pipelines.cases import Case
from tests.extensions.transformers_pipelines.golden_files import (
    call,
    difference,
    parametrize,
    read_cases,
)

import bertkit
from bertkit.errors import ConfigError


@parametrize("text_classification")
def test_results_match_transformers(case: Case, expected: Any, models: Path) -> None:
    assert not difference(call(case, models), expected)


def test_results_of_other_weights_differ(perturbed: Path) -> None:
    case, expected = read_cases("text_classification")[0]
    assert difference(call(case, perturbed), expected).startswith("[0].score")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_k": "all"}, "top_k: expected `int`"),
        ({"function_to_apply": "tanh"}, "function_to_apply: .*'tanh'"),
        ({"tokenizer": "x"}, "tokenizer: TextClassificationPipeline .* the model directory"),
        ({"stride": 3}, "stride: TextClassificationPipeline has no such setting"),
        ({"max_length": 0}, "max_length"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: dict[str, Any], message: str, models: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        bertkit.pipeline("text-classification", "no-such-model", **arguments)
    classify = bertkit.pipeline("text-classification", models / "classifier")
    with pytest.raises(ConfigError, match=message):
        classify("a cat", **arguments)
