"""Command line: arguments, exit codes, and messages."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit import cli
from bertkit.commands.table import COMMANDS

Captured = pytest.CaptureFixture[str]
MODEL_AND_FILES = ("--model", "m", "--train", "t", "--dev", "d", "--out", "o")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["pretrian"], 'Did you mean "pretrain"?'),
     (["finetune", "clasify"], "did you mean 'classify'?"),
     (["embed", "m", "t", "--poling", "cls"], "Did you mean --pooling?"),
     (["finetune", "tag", *MODEL_AND_FILES, "--grid", "a=1"], "Use `bertkit experiment`"),
     (["finetune", "classify", *MODEL_AND_FILES, "--lr", "1e-4"], "Did you mean --learning-rate?"),
     (["embed", "m", "t", "--pooling", "clss"], 'Did you mean "cls"?'),
     (["embed"], "MODEL is missing; `bertkit embed --help` lists the options"),
     (["finetune", "tag", "--model", "m", "--train", "t"],
      "--dev is missing; `bertkit finetune tag --help`"),
     (["embed", "m", "t", "--pooling"], "--pooling has no value; `bertkit embed --help`"),
     (["tokenizer", "train", "x", "--out", "y", "--size", "many"], "--size"),
     (["predict", "m", "--train.steps", "3"], "Unknown option: --train.steps"),
     (["embed", "m", "--train.steps", "3"], "--train.steps")],
)  # fmt: skip
def test_run_reports_unknown_arguments(words: list[str], sentence: str, capsys: Captured) -> None:
    assert cli.run(words) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert err.count("\n") == 1
    assert not out


def test_help_and_version_are_printed(capsys: Captured) -> None:
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
        request = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _bertkit"
        command = ["bash", "-c", f'source "{script}"; {request}; echo "${{COMPREPLY[@]}}"']
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert completed("bertkit", "finet") == ["finetune"]
    assert completed("bertkit", "finetune", "classify", "--learn") == ["--learning-rate"]
    assert completed("bertkit", "xyz") == []


def run_raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def app(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    return cli.run([])


def test_errors_set_exit_code_and_message(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert run_raising(KeyboardInterrupt("go on so"), monkeypatch) == 130
    assert capsys.readouterr().err == "bertkit: go on so\n"
    assert run_raising(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "bertkit: stopped\n"
    assert run_raising(bertkit.errors.DataError("of\ntwo lines"), monkeypatch) == 2
    assert capsys.readouterr().err == "bertkit: of two lines\n"
    assert run_raising(PermissionError(13, "Permission denied", "/x"), monkeypatch) == 2
    assert capsys.readouterr().err == "bertkit: /x: Permission denied\n"


def test_lines_of_parallel_processes_stay_separate(capfd: pytest.CaptureFixture[str]) -> None:
    """Unbuffered Python writes a printed line in several parts."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    program = "from bertkit.cli import run; [run(['nonsense']) for _ in range(300)]"
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in "ab"]
    for process in running:
        assert process.wait() == 0
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 600
    assert len({*lines}) == 1


def test_internal_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run_raising(ZeroDivisionError(), monkeypatch)


def test_printed_options_repeat_a_run(tiny: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "rows.tsv").write_text("text\tlabel\na b\tyes\nc d\tno\n" * 2, encoding="utf-8")
    rows = str(tmp_path / "rows.tsv")
    words = ["finetune", "classify", "--model", str(tiny), "--train", rows, "--dev", rows]
    words += ["--epochs", "1", "--lora.rank", "2", "--lora.layers", "qkv", "--text-column", "text"]
    assert cli.run([*words, "--out", str(tmp_path / "one"), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert not (tmp_path / "one").exists()
    config = tmp_path / "config.toml"
    config.write_text(printed, encoding="utf-8")
    assert tomllib.loads(printed)["lora"] == {
        "rank": 2, "alpha": 16.0, "dropout": 0.0, "layers": ["qkv"]
    }  # fmt: skip
    again = ["finetune", "classify", "--config", str(config)]
    assert cli.run([*again, "--print-config"]) == 0
    assert capsys.readouterr().out == printed
    for out, run in (("one", words), ("two", again), ("other", [*again, "--seed", "1"])):
        assert cli.run([*run, "--out", str(tmp_path / out)]) == 0
    one, two, other = (
        (tmp_path / out / "model.safetensors").read_bytes() for out in ("one", "two", "other")
    )
    assert one == two != other


@pytest.mark.parametrize("name", COMMANDS)
def test_printed_options_of_each_command_load(name: str, tmp_path: Path, capsys: Captured) -> None:
    app = cli.app
    for word in name.split():
        app = app[word]
    arguments = [item for item in app.assemble_argument_collection() if item.parse]
    assert not any("--config" in item.names for item in arguments)
    if name in ("pretrain", "experiment"):
        # These commands print their file, which their own tests compare.
        return
    words = name.split()
    for item in arguments:
        if item.required:
            words += ["1"] if item.names[0][0] != "-" else [item.names[0], "1"]
    assert cli.run([*words, "--print-config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "options.toml").write_text(printed, encoding="utf-8")
    assert cli.run([*words, f"--config={tmp_path}/options.toml", "--print-config"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "options.toml: no such file"),
        ("epoch = 3", 'Unknown option: "[epoch]" from {path}. Did you mean --epochs?'),
        ("epochs = ", "options.toml: not valid TOML"),
        ('epochs = "many"', "Invalid value for [epochs] from {path}: unable to convert"),
    ],
)
def test_invalid_files_of_options_are_rejected(
    content: str | None, message: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "options.toml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert cli.run(["finetune", "classify", *MODEL_AND_FILES, "--config", str(path)]) == 2
    assert message.format(path=path) in capsys.readouterr().err
    # The file applies only to its own command.
    assert cli.run(["info", "--help"]) == 0


def test_config_without_a_file_is_rejected(capsys: Captured) -> None:
    assert cli.run(["finetune", "classify", *MODEL_AND_FILES, "--config"]) == 2
    assert "--config has no value; use --config FILE" in capsys.readouterr().err
