"""What a folder can be asked is what it was made for."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder

from bertkit.checkpoint.folder import load, save
from bertkit.errors import CheckpointError, ConfigError
from bertkit.families import BERT, GPT2, LSTM_LM
from bertkit.serve.registry import ModelRegistry, ServedModel
from bertkit.tasks.classify import Classify, Options
from bertkit.text.train import train as train_tokenizer


@pytest.mark.parametrize(
    ("name", "abilities"),
    [
        ("pretrained", {"embed", "fill-mask", "next-sentence"}),
        ("sentiment", {"predict"}),
        ("entities", {"ner"}),
        ("reader", {"answer"}),
        ("ending", {"choose", "rerank"}),
        ("ranker", {"rerank"}),
    ],
)
def test_abilities(name: str, abilities: set[str], folders: Path) -> None:
    assert set(ServedModel(str(folders / name), "fp32").pipelines) == {
        *abilities,
        "contexts",
        "tokenize",
        "explain",
        "distance",
        *(["growing"] if "embed" in abilities else []),
    }


@pytest.mark.parametrize(("pairs", "ranks"), [(False, False), (True, True)])
def test_a_classifier_of_single_texts_does_not_rerank(
    pairs: bool, ranks: bool, folders: Path, tmp_path: Path
) -> None:
    loaded = load(folders / "pretrained", heads=["classify"], labels=("ham", "spam"))
    settings = Classify(("ham", "spam"), Options(pairs=pairs)).settings()
    more = {"labels": ("ham", "spam"), "settings": settings}
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, **more)
    served = ServedModel(str(tmp_path / "m"), "fp32")
    assert ("rerank" in served.pipelines) == ranks
    assert "predict" in served.pipelines


def test_a_known_vector_stays_known(folders: Path) -> None:
    one = ServedModel(str(folders / "pretrained"), "fp32")
    assert one.well(one.embed.run(one.probe)[0])
    assert not one.well(one.known * 1.1)
    assert not one.well(one.known * np.nan)


def test_weights_that_are_no_numbers_are_refused(folders: Path, tmp_path: Path) -> None:
    loaded = load(folders / "pretrained")
    with torch.no_grad():
        loaded.model.encoder.embedding.tokens.weight.fill_(float("nan"))
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT)
    with pytest.raises(
        CheckpointError, match=r"m: encoder\.embedding\.tokens\.weight has numbers that are none"
    ):
        ServedModel(str(tmp_path / "m"), "fp32")


def test_models_of_one_name_are_told_apart_by_their_paths(folders: Path, tmp_path: Path) -> None:
    loaded = load(folders / "pretrained")
    for run in ("a", "b"):
        save(tmp_path / run / "seed-0", loaded.model, loaded.tokenizer, BERT)
    paths = [str(tmp_path / run / "seed-0") for run in ("a", "b")]
    registry = ModelRegistry([*paths, str(folders / "pretrained")], None)
    names = list(registry.models)
    assert [name.endswith(end) for name, end in zip(names, ("a/seed-0", "b/seed-0"), strict=False)]
    assert list(ModelRegistry(paths, None).models) == ["a", "b"]  # the rest is the same
    registry.reload(names[0])
    assert registry.models[names[0]].name == names[0]
    with pytest.raises(ConfigError, match="named twice"):
        ModelRegistry([paths[0], paths[0]], None)


def test_code_of_others_is_not_run(folders: Path, tmp_path: Path) -> None:
    loaded = load(folders / "sentiment")
    task = {"bertkit": {"task": {"name": "os:system", "options": {}}}}
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, labels=loaded.labels, settings=task)
    with pytest.raises(CheckpointError, match="os:system, whose code is not bertkit's"):
        ServedModel(str(tmp_path / "m"), "fp32")


def test_a_model_that_was_replaced_is_gone_and_the_new_one_is_not_gone_through(
    folders: Path,
) -> None:
    registry = ModelRegistry([str(folders / "pretrained")], None)
    served = registry.models["pretrained"]
    assert isinstance(served, ServedModel)
    old = weakref.ref(served.loaded.model)
    del served
    registry.reload("pretrained")
    assert old() is None
    assert gc.get_freeze_count() > 0
    gc.unfreeze()


def test_a_language_model_of_lstms_writes_and_is_not_looked_into(
    english: list[str], tmp_path: Path
) -> None:
    tokenizer = train_tokenizer(english[:5], kind="bpe", size=300, use="write")
    folder = tiny_folder(tmp_path / "lstm", tokenizer, "lm", family=LSTM_LM)
    assert {*ServedModel(str(folder), "fp32").pipelines} == {
        "write",
        "next-token",
        "tokenize",
        "distance",
    }
    gpt = tiny_folder(tmp_path / "gpt", tokenizer, "lm", family=GPT2)
    assert {"explain", "contexts"} <= {*ServedModel(str(gpt), "fp32").pipelines}  # the control
