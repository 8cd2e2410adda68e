"""Front matter of model cards for the Hugging Face Hub, without local paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from bertkit.recipes.metadata import PIPELINES, data_name, front_matter, model_name
from bertkit.tasks import TASKS


def run(task: str, model: str, file: str | None = "/data/secret/dev.tsv") -> dict[str, Any]:
    return {
        "task": {"name": task},
        "model": model,
        "data": {"dev": {"file": file}},
        "dev": {"f1": 0.25, "accuracy": 0.5, "epoch": 2},
    }


def read(folder: Path, record: dict[str, Any]) -> Any:
    text = "\n".join(front_matter(folder, record))
    assert "/data" not in text
    assert "secret" not in text
    return ModelCard(text).data


@pytest.mark.parametrize("task", TASKS)
def test_front_matter_contains_task_scores_and_base_model(task: str, tmp_path: Path) -> None:
    data = read(tmp_path / "a: b", run(task, "google-bert/bert-base-uncased"))
    assert data.base_model == "google-bert/bert-base-uncased"
    assert data.pipeline_tag == PIPELINES[task]
    scores = {result.metric_type: result.metric_value for result in data.eval_results}
    assert scores == {"f1": 0.25, "accuracy": 0.5}
    assert {result.dataset_name for result in data.eval_results} == {"dev.tsv"}


def test_model_name_of_the_working_directory() -> None:
    assert model_name(".") == Path.cwd().name


def test_local_models_are_not_named_as_base_model(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for model in (str(tmp_path / "base"), "/data/secret/base"):
        data = read(tmp_path / "mine", run("classify", model))
        assert data.base_model is None
        assert model_name(model) == "base"
    assert model_name("me/base") == "me/base"
    assert model_name("/data/me/lib/site-packages/tiny_bert/parts/model") == "tiny_bert"
    assert data_name({"file": "/data/me/dev.tsv"}) == "dev.tsv"
    assert data_name({"file": None, "name": "imdb train"}) == "imdb train"
    assert data_name({"file": None}) == "examples given in Python"


def test_custom_task_has_no_pipeline_tag(tmp_path: Path) -> None:
    data = read(tmp_path / "mine", run("mine.stars:Rate", "me/base"))
    assert data.pipeline_tag is None
    assert data.base_model == "me/base"
