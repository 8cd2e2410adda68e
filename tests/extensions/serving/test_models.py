"""Pipelines, names, devices and reloads of served models."""

from __future__ import annotations

import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder

from bertkit.checkpoint.directory import load, save
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.export.int8_layers import unavailable
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.search import pipeline as search
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.served import ServedModel
from bertkit.families import BERT
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions
from bertkit.text.vocabulary_training import train as train_tokenizer


def engine_of(served: ServedModel) -> Engine:
    assert served.supported.embed is not None
    return served.supported.embed.engine


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pretrained", {"embed", "embed-all", "fill-mask", "next-sentence"}),
        ("sentiment", {"predict", "raw-scores"}),
        ("entities", {"ner"}),
        ("reader", {"answer"}),
        ("ending", {"choose", "rerank"}),
        ("ranker", {"rerank"}),
    ],
)
def test_pipelines_depend_on_trained_heads(name: str, expected: set[str], folders: Path) -> None:
    expected |= {"contexts", "tokenize", "explain", "distance"}
    expected |= {"growing"} if "embed" in expected else set()
    assert {*ServedModel(str(folders / name), "fp32").pipelines} == expected


@pytest.mark.parametrize(("pairs", "ranks"), [(False, False), (True, True)])
def test_only_classifier_of_pairs_can_rerank(
    pairs: bool, ranks: bool, folders: Path, tmp_path: Path
) -> None:
    loaded = load(folders / "pretrained", heads=["classify"], labels=("ham", "spam"))
    settings = Classify(("ham", "spam"), ClassifyOptions(pairs=pairs)).settings()
    save_options = {"labels": ("ham", "spam"), "settings": settings}
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, **save_options)
    served = ServedModel(str(tmp_path / "m"), "fp32")
    assert ("rerank" in served.pipelines) == ranks
    assert "predict" in served.pipelines


def test_about_contains_precision(english: list[str], tmp_path: Path) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    tokenizer = train_tokenizer(english[:20], kind="bpe", size=350, use="write")
    folder = tiny_folder(tmp_path / "gpt", tokenizer, "lm", family=GPT2)
    assert ServedModel(str(folder), "fp32").about().precision == "float32"
    assert ServedModel(str(folder), "int8").about().precision == "int8"


def test_registry_uses_largest_number_of_tuned_threads(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = {"one": 1, "three": 3, "untuned": None, "two": 2}
    thread_counts: list[int] = []

    def load_model(self: ModelRegistry, folder: str, name: str) -> ServedModel:
        thread_counts.append(torch.get_num_threads())
        if threads := tuned[name]:
            torch.set_num_threads(threads)
        return ServedModel(folder, "fp32")

    monkeypatch.setattr(ModelRegistry, "_load", load_model)
    ModelRegistry([f"{name}={folders / 'pretrained'}" for name in tuned], None)
    assert thread_counts == [1] * 4
    assert torch.get_num_threads() == 3
    thread_counts.clear()
    monkeypatch.setattr(search, "SearchPipeline", lambda *_: torch.set_num_threads(4))
    ModelRegistry([f"two={folders / 'pretrained'}"], "store")
    assert (thread_counts, torch.get_num_threads()) == ([3], 4)
    ModelRegistry([], None)
    assert torch.get_num_threads() == 4


def test_is_unchanged_compares_reference_vectors(folders: Path) -> None:
    served = ServedModel(str(folders / "pretrained"), "fp32")
    assert served.is_unchanged(served.reference)
    assert not served.is_unchanged(served.reference * 1.1)
    assert not served.is_unchanged(served.reference * np.nan)


def test_model_with_nan_weights_is_rejected(folders: Path, tmp_path: Path) -> None:
    loaded = load(folders / "pretrained")
    with torch.no_grad():
        loaded.model.encoder.embedding.tokens.weight.fill_(float("nan"))
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT)
    message = r"m: encoder\.embedding\.tokens\.weight contains NaN or inf"
    with pytest.raises(CheckpointError, match=message):
        ServedModel(str(tmp_path / "m"), "fp32")


def test_models_with_equal_names_are_distinguished_by_path(folders: Path, tmp_path: Path) -> None:
    loaded = load(folders / "pretrained")
    for run in ("a", "b"):
        save(tmp_path / run / "seed-0", loaded.model, loaded.tokenizer, BERT)
    paths = [str(tmp_path / run / "seed-0") for run in ("a", "b")]
    registry = ModelRegistry([*paths, str(folders / "pretrained")], None)
    names = list(registry.models)
    assert [name.endswith(end) for name, end in zip(names, ("a/seed-0", "b/seed-0"), strict=False)]
    # The other parts of the paths are equal.
    assert list(ModelRegistry(paths, None).models) == ["a", "b"]
    registry.reload(names[0])
    assert registry.models[names[0]].name == names[0]
    with pytest.raises(ConfigError, match="listed twice"):
        ModelRegistry([paths[0], paths[0]], None)


def test_registry_uses_specified_names(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = str(folders / "pretrained")
    named = [f"text-embedding-3-small={model_dir}", model_dir, f"a/b={model_dir}"]
    registry = ModelRegistry(named, None)
    assert list(registry.models) == ["text-embedding-3-small", "pretrained", "a/b"]
    registry.reload("text-embedding-3-small")
    assert registry.models["text-embedding-3-small"].name == "text-embedding-3-small"
    with pytest.raises(ConfigError, match=r"'pretrained' is listed twice; .* NAME=MODEL"):
        ModelRegistry([model_dir, f"pretrained={model_dir}"], None)
    for argument in (f"={model_dir}", "name="):
        with pytest.raises(ConfigError, match="write NAME=MODEL"):
            ModelRegistry([argument], None)
    # An existing path with "=" is not a name and a path.
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_dir, "lr=1e-4")
    assert list(ModelRegistry(["lr=1e-4"], None).models) == ["lr=1e-4"]


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("pretrained", {"embed": "a b c", "fill-mask": "a [MASK]", "next-sentence": ("a", "b c")}),
        ("sentiment", {"predict": "a b"}),
        ("entities", {"ner": "a b c"}),
        ("reader", {"answer": ("a", "b c")}),
        ("ending", {"choose": ("a", ["b", "c d"]), "rerank": ("a", "b")}),
        ("ranker", {"rerank": ("a", "b c"), "explain": ("a", None, (), ())}),
        ("ranker", {"contexts": ("b", ["a b", "b c d"]), "tokenize": "a"}),
    ],
)
def test_all_pipelines_run_on_gpu(
    name: str, requests: dict[str, Any], folders: Path, fake_gpu: str
) -> None:
    served = ServedModel(str(folders / name), "fp32", device=fake_gpu)
    assert engine_of(served).device.type == fake_gpu
    model = engine_of(served).model
    weights = [*model.parameters(), *model.buffers()]
    assert {weight.device.type for weight in weights} == {fake_gpu}
    for ability, item in requests.items():
        pipeline = served.pipelines[ability]
        works = pipeline.prepare([item, item], long=pipeline.policies[0])
        assert len(list(pipeline.run(works))) == 2


def test_registry_selects_and_logs_available_gpu(
    folders: Path,
    english: list[str],
    tmp_path: Path,
    fake_gpu: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model_dir = str(folders / "pretrained")
    registry = ModelRegistry([model_dir], None, device="auto")
    assert f"device: {fake_gpu}" in capsys.readouterr().err
    for _ in range(2):
        served = registry.models["pretrained"]
        assert engine_of(served).device.type == fake_gpu
        registry.reload("pretrained")
    ModelRegistry([model_dir], None, device="cpu")
    assert capsys.readouterr().err == ""
    tokenizer = train_tokenizer(english[:5], kind="bpe", size=300, use="write")
    tiny_folder(tmp_path / "writer", tokenizer, "lm", family=GPT2)
    served = ModelRegistry([str(tmp_path / "writer")], None, device="auto").models["writer"]
    assert engine_of(served).device.type == "cpu"
    assert "writer: using the CPU" in capsys.readouterr().err


def test_model_with_third_party_task_is_rejected(folders: Path, tmp_path: Path) -> None:
    loaded = load(folders / "sentiment")
    task = {"bertkit": {"task": {"name": "os:system", "options": {}}}}
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, labels=loaded.labels, settings=task)
    with pytest.raises(ConfigError, match="os:system, a task outside bertkit; set task= if you"):
        ServedModel(str(tmp_path / "m"), "fp32")


def test_reload_frees_old_model_and_freezes_new_model(folders: Path) -> None:
    registry = ModelRegistry([str(folders / "pretrained")], None)
    served = registry.models["pretrained"]
    old = weakref.ref(engine_of(served).model)
    del served
    registry.reload("pretrained")
    assert old() is None
    assert gc.get_freeze_count() > 0
    gc.unfreeze()


def test_lstm_language_model_generates_without_inspection_pipelines(
    english: list[str], tmp_path: Path
) -> None:
    tokenizer = train_tokenizer(english[:5], kind="bpe", size=300, use="write")
    folder = tiny_folder(tmp_path / "lstm", tokenizer, "lm", family=LSTM_LM)
    pipelines = {*ServedModel(str(folder), "fp32").pipelines}
    assert pipelines == {"write", "next-token", "tokenize", "distance"}
    gpt = tiny_folder(tmp_path / "gpt", tokenizer, "lm", family=GPT2)
    # A GPT has the inspection pipelines.
    assert {"explain", "contexts"} <= {*ServedModel(str(gpt), "fp32").pipelines}


def test_exported_model_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text("{}")
    with pytest.raises(CheckpointError, match="got an exported model; use it with `bertkit embed`"):
        ModelRegistry([str(tmp_path)], None)
