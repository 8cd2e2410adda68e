"""The command line: words in, exit codes and one sentence out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit import cli

Captured = pytest.CaptureFixture[str]
MODEL_AND_FILES = ("--model", "m", "--train", "t", "--dev", "d", "--out", "o")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pretrian"], 'Did you mean "pretrain"?'),
        (["finetune", "clasify"], 'Did you mean "classify"?'),
        (["embed", "m", "t", "--poling", "cls"], "Did you mean --pooling?"),
        (["finetune", "tag", *MODEL_AND_FILES, "--grid", "a=1"], "Use `bertkit experiment`"),
        (
            ["finetune", "classify", *MODEL_AND_FILES, "--lr", "1e-4"],
            "Did you mean --learning-rate?",
        ),
        (["embed", "m", "t", "--pooling", "clss"], 'Did you mean "cls"?'),
        (["embed"], "MODEL is missing; `bertkit embed --help` says what the command takes"),
        (
            ["finetune", "tag", "--model", "m", "--train", "t"],
            "--dev is missing; `bertkit finetune tag --help`",
        ),
        (["embed", "m", "t", "--pooling"], "--pooling has no value; `bertkit embed --help`"),
        (["tokenizer", "train", "x", "--out", "y", "--size", "many"], "--size"),
        (["predict", "m", "--train.steps", "3"], "--train.steps"),
    ],
)
def test_words_that_are_not_known(words: list[str], sentence: str, capsys: Captured) -> None:
    assert cli.run(words) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert err.count("\n") == 1
    assert not out


def test_help_and_version(capsys: Captured) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == bertkit.__version__
    assert cli.run(["pretrain", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--resume" in out
    assert "--corpus" in out


def test_bash_completes_commands_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.run(["--install-completion", "--shell", "bash"]) == 0
    (script,) = (tmp_path / ".local").rglob("bertkit")
    assert str(script) in capsys.readouterr().out

    def completed(*words: str) -> list[str]:
        asked = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _bertkit"
        command = ["bash", "-c", f'source "{script}"; {asked}; echo "${{COMPREPLY[@]}}"']
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert completed("bertkit", "finet") == ["finetune"]
    assert completed("bertkit", "finetune", "classify", "--learn") == ["--learning-rate"]
    assert completed("bertkit", "xyz") == []


def raised(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def app(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    return cli.run([])


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert raised(KeyboardInterrupt("go on so"), monkeypatch) == 130
    assert capsys.readouterr().err == "bertkit: go on so\n"
    assert raised(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "bertkit: stopped\n"
    assert raised(bertkit.errors.DataError("of\ntwo lines"), monkeypatch) == 2
    assert capsys.readouterr().err == "bertkit: of two lines\n"
    assert raised(PermissionError(13, "Permission denied", "/x"), monkeypatch) == 2
    assert capsys.readouterr().err == "bertkit: /x: Permission denied\n"


def test_what_several_processes_tell_stays_apart(capfd: pytest.CaptureFixture[str]) -> None:
    """Where Python does not buffer, and so writes what it prints bit by bit."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    program = "from bertkit.cli import run; [run(['nonsense']) for _ in range(300)]"
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in "ab"]
    for process in running:
        assert process.wait() == 0
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 600
    assert len({*told}) == 1


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        raised(ZeroDivisionError(), monkeypatch)
