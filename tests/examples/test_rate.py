"""Tests of a task class outside the package, from training to prediction."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "stars" / "bertkit_stars" / "rate.py"
WORDS = ["dire", "fair", "fine"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory with the task, a model, and texts with one to three stars."""
    shutil.copy(EXAMPLE, tmp_path)
    shape = {"hidden": 32, "intermediate": 64, "length": 16}
    tiny_folder(tmp_path / "model", tiny_tokenizer(WORDS), "mlm", **shape)
    lines = [f"{WORDS[i % 3]} {WORDS[i % 3]}\t{1 + i % 3}" for i in range(30)]
    (tmp_path / "rows.tsv").write_text("text\tstars\n" + "\n".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "rate", raising=False)
    return tmp_path


def test_commands_accept_task_by_class_name(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        "--train", "rows.tsv", "--dev", "rows.tsv", "--label-column", "stars", "--text-column",
        "text",
    ]  # fmt: skip
    fit = ["--epochs", "30", "--batch-size", "8", "--learning-rate", "1e-2", "--precision", "fp32"]
    command = ["finetune", "rate:Rate", "--model", "model", "--out", "stars", *files, *fit]
    assert cli.run(command) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["accuracy"] == 1.0
    assert scores["mean_error"] == 0.0
    options = ["--task", "rate:Rate"]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # simulates a new process
    monkeypatch.delitem(sys.modules, "rate")
    assert cli.run(["evaluate", "stars", "rows.tsv", "--label-column", "stars", *options]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0
    assert cli.run(["predict", "stars", "fine fine", "dire dire", *options]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["stars"] for answer in answers] == [3, 1]
    rate = bertkit.pipeline("rate:Rate", "stars")
    assert rate(["fair fair", "dire dire"])[0].stars == 2


def test_code_named_by_model_directory_is_not_imported(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = json.loads((shop / "model" / "config.json").read_text(encoding="utf-8"))
    settings["bertkit"]["task"] = {"name": "rate:Rate", "options": {}}
    (shop / "model" / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert cli.run(["predict", "model", "fine"]) == 2
    assert "set --task if you trust its code" in capsys.readouterr().err
    assert "rate" not in sys.modules


def test_unknown_class_names_are_rejected(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (
        ("rate:Rte", "cannot be imported"),
        ("rates:Rate", "cannot be imported"),
        ("json:JSONDecoder", "is not a subclass of"),
    ):
        assert cli.run(["finetune", name]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(ConfigError, match="unknown pipeline 'rate'"):
        bertkit.pipeline("rate", "model")
