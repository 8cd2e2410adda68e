"""Publication of models: uploaded files, permissions, and download."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_folder
from tests.hub import TOKEN, Hub, environment, serving

from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import LabelExample
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


SCRIPT = """
import contextlib, io, json, os, sys, time
from bertkit import cli
time.sleep = lambda seconds: None  # The library of the hub waits before it repeats a request.
for words, token in json.loads(sys.argv[1]):
    os.environ.pop("HF_TOKEN", None)
    os.environ |= {"HF_TOKEN": token} if token else {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            code = cli.run(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def run_commands(
    hub: str, cache: Path, *commands: tuple[list[Any], str | None]
) -> list[tuple[int, str, str]]:
    """Run commands with a token each in a process that uses the test server as the hub.

    Returns:
        The exit code, output, and messages of each command.
    """
    given = json.dumps([([str(word) for word in words], token) for words, token in commands])
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, given],
        env=environment(hub, cache),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_pushed_model_can_be_downloaded(hub: str, tuned: Path, tmp_path: Path) -> None:
    push, *predictions = run_commands(
        hub,
        tmp_path,
        (["push", tuned, "me/mine", "--private"], TOKEN),
        (["predict", "me/mine", "number 3"], None),
        (["predict", tuned, "number 3"], None),
    )
    assert push[:2] == [0, f"{hub}/me/mine\n"], push
    pushed = Hub.pushed["me/mine"]
    assert pushed.keys() >= {"config.json", "model.safetensors", "README.md", "vocab.txt"}
    assert not pushed.keys() & {"run.json", "scores.json", "journal.jsonl", "errors.html"}
    assert pushed["model.safetensors"] == (tuned / "model.safetensors").read_bytes()
    assert all(str(tuned.parent).encode() not in content for content in pushed.values())
    assert "model.safetensors" in Hub.asked
    (code, downloaded, _), (_, local, _) = predictions
    assert code == 0, predictions
    assert json.loads(downloaded) == json.loads(local)


def test_push_reports_errors_and_leaves_no_files(
    hub: str, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "do_PUT", lambda self: self.connection.close())
    (tmp_path / "empty").mkdir()
    cases = [
        (tuned, "me/mine", None, "set HF_TOKEN"),
        (tuned, "me/mine", "another", "invalid token; set HF_TOKEN"),
        (tuned, "org/closed", TOKEN, "no write permission"),
        (tuned, "mine", TOKEN, "not a valid repository name; use a name such as me/my-model"),
        (tmp_path / "empty", "me/mine", TOKEN, "config.json"),
        (tuned, "me/mine", TOKEN, "me/mine: upload to the hub failed"),
    ]
    commands = [(["push", folder, name], token) for folder, name, token, _ in cases]
    results = run_commands(hub, tmp_path, *commands)
    for (code, _, messages), (*_, sentence) in zip(results, cases, strict=True):
        assert code == 2, messages
        assert sentence in messages
        assert TOKEN not in messages
    assert Hub.pushed == {"me/mine": {}}  # The last command creates a model without files.
