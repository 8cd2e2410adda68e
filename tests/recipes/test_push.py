"""Publication of models: uploaded files, permissions, and download."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.factories import tiny_folder
from tests.hub import TOKEN, Hub, environment, serving

from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.classify import Classify, LabelExample
from bertkit.text.vocabulary_training import train as train_tokenizer


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("push")
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    base = tiny_folder(folder / "base", tokenizer, "mlm", "nsp", hidden=16, intermediate=16)
    labels = ("thing", "doing")
    rows = [LabelExample(f"number {i}", None, labels[i % 2], f"rows:{i}") for i in range(16)]
    settings = Finetune(epochs=1, batch_size=8, precision="fp32")
    finetune(Classify, base, train=rows, dev=rows, out=folder / "tuned", settings=settings)
    return folder / "tuned"


@pytest.fixture
def hub() -> Iterator[str]:
    with serving() as address:
        yield address


def run_command(
    hub: str, cache: Path, *words: object, token: str | None = TOKEN
) -> subprocess.CompletedProcess[str]:
    """Run a command that uses the test server as the hub."""
    return subprocess.run(
        [sys.executable, "-m", "bertkit", *map(str, words)],
        env=environment(hub, cache, token),
        capture_output=True,
        text=True,
    )


def test_pushed_model_can_be_downloaded(hub: str, tuned: Path, tmp_path: Path) -> None:
    done = run_command(hub, tmp_path, "push", tuned, "me/mine", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub}/me/mine"
    pushed = Hub.pushed["me/mine"]
    assert pushed.keys() >= {"config.json", "model.safetensors", "README.md", "vocab.txt"}
    assert not pushed.keys() & {"run.json", "scores.json", "journal.jsonl", "errors.html"}
    assert pushed["model.safetensors"] == (tuned / "model.safetensors").read_bytes()
    assert all(str(tuned.parent).encode() not in content for content in pushed.values())
    opened = run_command(hub, tmp_path / "other", "predict", "me/mine", "number 3", token=None)
    assert opened.returncode == 0, opened.stderr
    here = run_command(hub, tmp_path, "predict", tuned, "number 3", token=None)
    assert json.loads(opened.stdout) == json.loads(here.stdout)


@pytest.mark.parametrize(
    ("name", "token", "sentence"),
    [
        ("me/mine", None, "set HF_TOKEN"),
        ("me/mine", "another", "invalid token; set HF_TOKEN"),
        ("org/closed", TOKEN, "no write permission"),
        ("mine", TOKEN, "not a valid repository name; use a name such as me/my-model"),
    ],
)
def test_push_rejects_missing_permissions_and_invalid_names(
    hub: str, tuned: Path, tmp_path: Path, name: str, token: str | None, sentence: str
) -> None:
    done = run_command(hub, tmp_path, "push", tuned, name, token=token)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stderr
    assert not Hub.pushed.get(name)


def test_push_rejects_a_directory_without_model(hub: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run_command(hub, tmp_path, "push", tmp_path / "empty", "me/mine")
    assert done.returncode == 2
    assert "config.json" in done.stderr
    assert not Hub.pushed


def test_push_reports_a_closed_connection(
    hub: str, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "do_PUT", lambda self: self.connection.close())
    done = run_command(hub, tmp_path, "push", tuned, "me/mine")
    assert done.returncode == 2
    assert "me/mine: upload to the hub failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Hub.pushed["me/mine"]  # No partial upload remains.
