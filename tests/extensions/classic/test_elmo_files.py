"""Loading and saving of ELMo directories in the published format."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import ELMO_OPTIONS, elmo_weights, tiny_elmo

import bertkit
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.classic.elmo_files import load_elmo, save_elmo

h5py = pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")


def test_load_elmo_accepts_prefixed_file_names(tmp_path: Path) -> None:
    folder = tiny_elmo(tmp_path / "elmo")
    for path in list(folder.iterdir()):
        path.rename(folder / f"elmo_2x12_{path.name}")
    assert load_elmo(folder).config.hidden == 12
    (folder / "more_weights.hdf5").write_bytes(b"")
    with pytest.raises(CheckpointError, match="2 files named"):
        load_elmo(folder)


def test_load_reports_task_of_elmo(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"an ELMo.*'words'"):
        bertkit.load(tiny_elmo(tmp_path / "elmo"))
    with pytest.raises(CheckpointError, match="no file named"):
        bertkit.pipeline("words", tmp_path)
    with pytest.raises(CheckpointError, match="no such directory"):
        bertkit.pipeline("words", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        ("lstm", {"dim": 13}, r"RNN_0.*shape \(12, 52\) as in the options, got \(12, 48\)"),
        ("lstm", {"n_layers": 1}, "contains RNN_0.*Cell1.*not in options"),
        ("lstm", {"n_layers": 3}, "RNN_0.*Cell2.* is missing"),
        ("lstm", {"dim": "wide"}, r"Expected `int`.*\$.lstm.dim"),
        ("lstm", {"cell_clip": 0}, "cell_clip"),
        ("char_cnn", {"filters": [[51, 3]]}, "must not exceed max_characters_per_token, got 51"),
        ("char_cnn", {"filters": []}, "filters"),
        ("char_cnn", {"activation": "gelu"}, "gelu"),
        ("char_cnn", {"n_characters": 300}, "n_characters"),
        ("char_cnn", {"n_highway": 1}, "contains CNN_high_1"),
    ],
)
def test_load_elmo_rejects_mismatched_options(
    group: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tiny_elmo(tmp_path / "elmo")
    options = ELMO_OPTIONS | {group: ELMO_OPTIONS[group] | values}  # type: ignore[operator]
    (folder / "options.json").write_text(json.dumps(options))
    with pytest.raises(CheckpointError, match=message) as error:
        load_elmo(folder)
    assert str(folder) in str(error.value)


def load_damaged(change: Callable[[Path], None], folder: Path) -> str:
    path = tiny_elmo(folder) / "lm_weights.hdf5"
    change(path)
    with pytest.raises(CheckpointError) as error:
        load_elmo(folder)
    assert str(path) in str(error.value)
    return str(error.value)


def test_load_elmo_rejects_invalid_weights_file(tmp_path: Path) -> None:
    def replace_embedding(write_embedding: Callable[[Any], None]) -> Callable[[Path], None]:
        def change(path: Path) -> None:
            with h5py.File(path, "a") as file:
                del file["char_embed"]
                write_embedding(file)

        return change

    def external_link(file: Any) -> None:
        with h5py.File(tmp_path / "other.h5", "w") as external_file:
            external_file["x"] = elmo_weights(ELMO_OPTIONS)["char_embed"]
        file["char_embed"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")

    def strings(file: Any) -> None:
        file["char_embed"] = np.full((261, 4), b"text")

    def huge(file: Any) -> None:
        file.create_dataset("char_embed", (1 << 40, 4), dtype="f4", chunks=(64, 4))

    cases = {
        "not a valid HDF5 file": lambda path: path.write_bytes(b"text"),
        "download the file again": lambda path: path.write_bytes(path.read_bytes()[:3000]),
        "char_embed is missing": replace_embedding(lambda file: None),
        "is stored in another file": replace_embedding(external_link),
        "does not contain the values": replace_embedding(strings),
        "shape (261, 4) as in the options": replace_embedding(huge),
    }
    for number, (message, change) in enumerate(cases.items()):
        assert message in load_damaged(change, tmp_path / str(number))


def test_load_elmo_rejects_or_loads_corrupted_file(tmp_path: Path) -> None:
    path = tiny_elmo(tmp_path / "elmo") / "lm_weights.hdf5"
    content = path.read_bytes()
    for seed in range(30):
        random, corrupted = np.random.default_rng(seed), bytearray(content)
        for offset in random.integers(0, 6000, 8):
            corrupted[offset] = random.integers(0, 256)
        path.write_bytes(corrupted)
        with contextlib.suppress(bertkit.BertkitError):
            load_elmo(path.parent)


def test_load_elmo_reports_missing_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_elmo(tmp_path / "elmo")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"pip install 'bertkit\[classic\]'"):
        load_elmo(folder)


def test_saved_elmo_loads_identical_weights(tmp_path: Path) -> None:
    folder = tiny_elmo(tmp_path / "elmo")
    original = load_elmo(folder)
    save_elmo(tmp_path / "again", original.config, original.state_dict())
    reloaded = load_elmo(tmp_path / "again")
    assert reloaded.config == original.config
    weights = reloaded.state_dict()
    for name, weight in original.state_dict().items():
        assert torch.equal(weights[name], weight), name
    with (
        h5py.File(folder / "lm_weights.hdf5") as published_file,
        h5py.File(tmp_path / "again" / "weights.hdf5") as saved_file,
    ):
        assert shapes(saved_file) == shapes(published_file)
        for name in shapes(published_file):
            np.testing.assert_allclose(saved_file[name][()], published_file[name][()], atol=1e-6)


def test_save_elmo_writes_published_dataset_names(data_folder: Path, tmp_path: Path) -> None:
    published = data_folder / "elmo_tiny"
    original = load_elmo(published)
    save_elmo(tmp_path / "again", original.config, original.state_dict())
    with (
        h5py.File(published / "lm_weights.hdf5") as published_file,
        h5py.File(tmp_path / "again" / "weights.hdf5") as saved_file,
    ):
        assert shapes(saved_file) == shapes(published_file)
    weights = load_elmo(tmp_path / "again").state_dict()
    assert all(torch.equal(weights[n], weight) for n, weight in original.state_dict().items())


def shapes(file: Any) -> dict[str, tuple[int, ...]]:
    result: dict[str, tuple[int, ...]] = {}
    file.visititems(
        lambda name, item: result.update({name: item.shape}) if hasattr(item, "shape") else None
    )
    return result
