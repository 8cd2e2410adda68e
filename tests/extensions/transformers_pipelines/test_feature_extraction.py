"""Hidden states equal transformers 4.57."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.extensions.transformers_pipelines.cases import LONG, Case
from tests.extensions.transformers_pipelines.golden_files import call, difference, parametrize

import bertkit
from bertkit.errors import ConfigError, DataError


@parametrize("feature_extraction")
def test_results_match_transformers(
    case: Case, expected: Any, models: Path, request: pytest.FixtureRequest
) -> None:
    if case.model != "minilm":
        assert not difference(call(case, models), expected)
        return
    folder = request.getfixturevalue("minilm")
    ((*rows,),) = call(case._replace(model=folder.name), folder.parent)
    assert not difference([[row[:6] for row in rows]], expected)


def test_tensors_equal_lists(models: Path) -> None:
    extract = bertkit.pipeline("feature-extraction", models / "bert")
    tensor = extract("the cat", return_tensors=True)
    assert tensor.shape == (1, 4, 32)
    assert tensor.tolist() == extract("the cat")


def test_invalid_arguments_are_rejected(models: Path) -> None:
    extract = bertkit.pipeline("feature-extraction", models / "bert")
    with pytest.raises(ConfigError, match="stride"):
        extract("the cat", tokenize_kwargs={"stride": 3})
    with pytest.raises(ConfigError, match="pooling: FeatureExtractionPipeline has no such setting"):
        extract("the cat", pooling="mean")
    with pytest.raises(DataError, match="longer than the maximum of 64 tokens"):
        extract(LONG)
