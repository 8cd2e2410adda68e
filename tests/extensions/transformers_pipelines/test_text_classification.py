"""Arguments of text classification are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit.errors import ConfigError


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
