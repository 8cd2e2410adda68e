"""Detection of model formats, and errors if a command requires another format."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults import model_formats as models
from tests.faults.run_formats import make_store

import bertkit
from bertkit.checkpoint.adapter import base_of
from bertkit.checkpoint.formats import (
    DIRECTORIES,
    FORMATS,
    SINGLE_FILES,
    LoadSettings,
    ModelFormat,
    format_of,
    open_format,
)
from bertkit.errors import BertkitError, CheckpointError


def make(name: str, root: Path, tiny: Path) -> Path:
    """Return a model of a format; formats that bertkit does not write have empty files."""
    makers: dict[str, Callable[[Path], None]] = {
        "adapter": models.make_adapter,
        "elmo": models.make_elmo,
        "word-features": models.make_word_features,
    }
    folder = root / name
    if name == "transformer":
        return tiny
    if name in makers:
        makers[name](folder)
        return folder
    folder.mkdir()
    files = {"gguf": ("model.gguf",), "word-vectors": ("vectors.txt.gz",)}
    for pattern in files.get(name) or DIRECTORIES[name]:
        (folder / pattern.replace("*", "model")).touch()
    return folder / files[name][0] if name in files else folder


def test_formats_have_files_and_a_class() -> None:
    assert {*SINGLE_FILES, *DIRECTORIES, "word-features"} == {*FORMATS}
    for kind in FORMATS.values():
        assert issubclass(kind, ModelFormat)
        assert kind.noun


@pytest.mark.parametrize("name", FORMATS)
def test_format_is_detected(name: str, tmp_path: Path, tiny: Path) -> None:
    path = make(name, tmp_path, tiny)
    assert format_of(path) == name
    opened = open_format(path)
    assert type(opened) is FORMATS[name]
    assert opened.path == path


@pytest.mark.parametrize("name", FORMATS)
def test_mismatch_is_reported_with_the_format(name: str, tmp_path: Path, tiny: Path) -> None:
    opened = open_format(make(name, tmp_path, tiny))
    calls: dict[str, Callable[[], object]] = {
        "stored": opened.stored,
        "load_embedder": lambda: opened.load_embedder(LoadSettings()),
        "load_task": lambda: opened.load_task(LoadSettings()),
        "load_frozen": lambda: opened.load_frozen(LoadSettings()),
        "load_pipelines": lambda: opened.load_pipelines(LoadSettings()),
        "info": opened.info,
    }
    for method, call in calls.items():
        if getattr(type(opened), method) is getattr(ModelFormat, method):
            with pytest.raises(CheckpointError, match=rf"expected a .*, got {opened.noun}; \w"):
                call()


@pytest.mark.parametrize("model", ["nothing", "no.such"])
def test_directory_without_a_model_is_rejected(model: str, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "README.md").touch()
    calls: tuple[Callable[[str], object], ...] = (
        bertkit.load,
        lambda path: bertkit.predict(path, ["a"]),
        lambda path: bertkit.embed(path, ["a"]),
        lambda path: bertkit.pipeline("classify", path),
    )
    for call in calls:
        with pytest.raises(CheckpointError, match=r"no model found|no such directory"):
            call(str(tmp_path / model))


def test_store_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    make_store(tmp_path / "m")
    with pytest.raises(CheckpointError, match="expected a Transformer, got a store of documents"):
        bertkit.load(tmp_path / "m" / "store")


def test_single_file_is_rejected_by_load(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="got a file; pass the directory of a model"):
        bertkit.load(tmp_path / "model.safetensors")


def test_complete_model_with_adapters_is_a_transformer(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "adapter_config.json"):
        (tmp_path / name).touch()
    assert format_of(tmp_path) == "transformer"
    assert base_of(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["transformer", "adapter", "sentence-transformers"])
def test_stray_files_do_not_change_the_format(name: str, tmp_path: Path, tiny: Path) -> None:
    model = shutil.copytree(make(name, tmp_path, tiny), tmp_path / "copy")
    for file in ("training_options.json", "vectors.txt", "vectors.txt.md5", "weights.hdf5"):
        (model / file).touch()
    assert format_of(model) == name


def test_word_vectors_without_an_elmo_are_word_features(tmp_path: Path) -> None:
    models.make_word_features(tmp_path / "model", elmo=False)
    assert format_of(tmp_path / "model") == "word-features"


@pytest.mark.parametrize("settings", ["", "[1]", "{}", '{"model_type": []}', '{"model_type": "x"}'])
def test_directory_with_unknown_settings_is_a_transformer(settings: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(settings)
    assert format_of(tmp_path) == "transformer"


def test_unfinished_run_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(BertkitError, match="has not saved a model yet; continue the run with"):
        bertkit.load(tmp_path)
