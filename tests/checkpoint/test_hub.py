"""Hub ids, resolved with a local server that implements a part of the Hub API."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub import COMMITS, FILES, Hub, environment, serving

from bertkit.checkpoint.hub import published, resolve
from bertkit.checkpoint.run_directory import EXPERIMENT, RUN, SCORES, TEST
from bertkit.errors import CheckpointError
from bertkit.extensions.export import tuning_record as tuned


@pytest.fixture
def hub() -> Iterator[str]:
    with serving() as address:
        yield address


SCRIPT = """
import json, sys
from bertkit.checkpoint.hub import resolve
from bertkit.errors import CheckpointError
for name, revision in json.loads(sys.argv[1]):
    try:
        folder = resolve(name, revision)
        files = [p for p in folder.rglob("*") if p.is_file()]
        print(json.dumps({str(p.relative_to(folder)): p.read_text() for p in files}))
    except CheckpointError as error:
        print(json.dumps(str(error)))
"""


def resolve_names(hub: str, cache: Path, *names: tuple[str, str | None]) -> list[Any]:
    """Return the results of `resolve` in a process that uses the local server as the hub."""
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(names)],
        env=environment(hub, cache),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_resolve_downloads_revisions_and_reports_errors(hub: str, tmp_path: Path) -> None:
    newest, old, exact, revision, missing, closed = resolve_names(
        hub, tmp_path, ("org/tiny", None), ("org/tiny", "old"), ("org/tiny", COMMITS["old"]),
        ("org/tiny", "none"), ("org/none", None), ("org/closed", None),
    )  # fmt: skip
    expected = {
        name: data.decode() for name, data in FILES.items() if not name.endswith((".bin", ".py"))
    }
    assert newest == expected
    assert old == exact == {**expected, "vocab.txt": "[PAD]\n!"}
    assert revision == "org/tiny: revision 'none' not found on the hub; check the spelling"
    assert (
        missing == "org/none: neither a local directory nor a model on the hub; check the spelling"
    )
    assert "the model is gated" in closed
    assert set(Hub.asked) == set(expected)


def test_pytorch_files_are_downloaded_only_without_safetensors(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: FILES[name] for name in ("config.json", "vocab.txt", "pytorch_model.bin")}
    monkeypatch.setitem(Hub.pushed, "org/old", {**files, "optimizer.pt": b"", "a.py": b""})
    # A dense layer of sentence-transformers has its own file.
    dense = {**FILES, "2_Dense/pytorch_model.bin": b"a layer", "spm.model": b"pieces"}
    monkeypatch.setitem(Hub.pushed, "org/dense", dense)
    names = [(f"org/{name}", None) for name in ("tiny", "old", "dense")]
    tiny, old, modules = resolve_names(hub, tmp_path, *names)
    assert "pytorch_model.bin" not in tiny
    assert old == {name: data.decode() for name, data in files.items()}
    assert "pytorch_model.bin" not in modules
    assert modules["2_Dense/pytorch_model.bin"] == "a layer"
    assert modules["spm.model"] == "pieces"


def test_resolve_uses_cache_if_hub_is_unreachable(hub: str, tmp_path: Path) -> None:
    (first,) = resolve_names(hub, tmp_path, ("org/tiny", None))
    nowhere = "http://127.0.0.1:9"
    again, never = resolve_names(nowhere, tmp_path, ("org/tiny", None), ("org/other", None))
    assert again == first
    assert "org/other: " in never
    assert "cannot be" in never


def test_resolve_accepts_paths_and_rejects_invalid_names(tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path
    (tmp_path / "file").touch()
    assert resolve(tmp_path / "file") == tmp_path / "file"
    for name in (tmp_path / "none", str(tmp_path / "none"), "a/b/c"):
        with pytest.raises(CheckpointError, match="no such directory"):
            resolve(name)
    for name, given in (("", "an empty name"), (None, "NoneType"), (1, "int")):
        with pytest.raises(
            CheckpointError, match=f"^model: expected a path or hub id, got {given}"
        ):
            resolve(name)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"^a--b/c: "):
        resolve("a--b/c")


def test_published_files_exclude_run_records(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "base").mkdir()
    expected = (
        *("base/model.safetensors", "base/vocab.txt"),
        *("config.json", "README.md", "1_Pooling/config.json", "1_Pooling/model.safetensors"),
        *("weights.hdf5", "vectors.txt", "vectors.txt.gz", "source.spm"),
    )
    for name in (
        *expected,
        RUN,
        SCORES,
        EXPERIMENT,
        TEST,
        tuned.FILE,
        "errors.jsonl",
        "journal.jsonl",
    ):
        (tmp_path / name).touch()
    assert published(tmp_path) == sorted(expected)


def test_published_files_include_pytorch_files_only_without_safetensors(tmp_path: Path) -> None:
    files = ("config.json", "model.pt", "pytorch_model.bin", "optimizer.bin")
    for name in files:
        (tmp_path / name).touch()
    assert published(tmp_path) == ["config.json", "model.pt", "pytorch_model.bin"]
    (tmp_path / "model.safetensors").touch()
    assert published(tmp_path) == ["config.json", "model.safetensors"]
