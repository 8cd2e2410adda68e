"""Results of all pipelines equal transformers 4.57; inputs, models, and options are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.extensions.transformers_pipelines.cases import CASES, LONG, PAIR, TEXT, Case
from tests.extensions.transformers_pipelines.golden_files import (
    call,
    difference,
    parametrize,
    read_cases,
)

import bertkit
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.serving.generated import pipeline_routes
from bertkit.extensions.transformers_pipelines.base import TransformersPipeline
from bertkit.pipelines import PIPELINES


# `test_feature_extraction.py` and the tests of zero-shot classification compare the others.
@parametrize(*(name for name in CASES if name not in ("feature_extraction", "zero_shot")))
def test_results_match_transformers(case: Case, expected: Any, models: Path) -> None:
    assert not difference(call(case, models), expected)


@pytest.mark.parametrize("name", CASES)
def test_results_of_other_weights_differ(name: str, perturbed: Path) -> None:
    case, expected = read_cases(name)[0]
    assert difference(call(case, perturbed), expected)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (3, "inputs: expected a text or a list, got int"),
        (["a cat", 3], r"inputs\[1\]: expected a text, got int"),
        (["a cat", " "], r"inputs\[1\]: the text is empty"),
        (["a cat", PAIR], r"inputs\[0\]: .*pass only texts or only pairs"),
        ({"text": "a", "pair": "b"}, r"inputs\[0\]: .*got the keys 'text', 'pair'"),
        (LONG, "longer than the maximum of 64 tokens"),
    ],
)
def test_invalid_inputs_are_rejected(inputs: Any, message: str, models: Path) -> None:
    classify = bertkit.pipeline("text-classification", models / "classifier")
    with pytest.raises(DataError, match=message):
        classify(inputs)


def test_lists_of_any_length_are_accepted(models: Path) -> None:
    classify = bertkit.pipeline("text-classification", models / "classifier", batch_size=8)
    assert classify([]) == []
    texts = ["the cat", "a dog sat", "bob"]
    assert not difference(classify(iter(texts)), [row for text in texts for row in classify(text)])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text-classification", "no classify head"),
        ("ner", "no tag head .*bertkit finetune tag"),
        ("question-answering", "no answer head .*bertkit finetune answer"),
        ("summarization", "no lm head .*use a generative model such as GPT-2, T5, or BART"),
        ("zero-shot-classification", "use a model that was trained on NLI"),
    ],
)
def test_wrong_model_is_rejected_with_the_needed_one(name: str, message: str, models: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        bertkit.pipeline(name, models / "bert")


def test_arguments_of_the_opening_are_defaults(models: Path) -> None:
    classify = bertkit.pipeline("text-classification", models / "classifier", top_k=1)
    assert isinstance(classify, TransformersPipeline)
    assert len(classify(TEXT, top_k=3)) == 3
    # The call has not changed the defaults.
    assert [len(row) for row in classify([TEXT])] == [1]


def test_loaded_model_is_used(models: Path) -> None:
    loaded = bertkit.load(models / "classifier")
    classify = bertkit.pipeline("text-classification", loaded, device="cpu")
    assert classify.model.loaded is loaded
    assert repr(classify).startswith("<TextClassificationPipeline of <TaskPipeline classify")


@pytest.mark.parametrize("name", ["rerank", "next-token", "summarize", "fill-gap", "tag"])
def test_bertkit_pipelines_reject_arguments_of_transformers(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^aggregation_strategy: .* has no such parameter; "):
        bertkit.pipeline(name, "no-such-model", aggregation_strategy="simple")


def test_servers_have_no_routes_for_names_of_transformers() -> None:
    paths = PIPELINES.paths.items()
    names = {name for name, path in paths if "transformers_pipelines" in path}
    routes = {route.path.removeprefix("/") for route in pipeline_routes(PIPELINES)}
    assert "zero-shot-classification" in routes
    assert routes & names <= {"fill-mask"}
