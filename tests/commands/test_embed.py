"""Tests of `bertkit embed`."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit import cli
from bertkit.checkpoint.pooling_files import write_pooling
from bertkit.nn.pooling import Pooling
from bertkit.text.prompts import Prompts

Captured = pytest.CaptureFixture[str]


def test_embed_reads_texts_from_stdin(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a day\n\nanother day\n"))
    assert cli.run(["embed", str(model)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(row) for row in rows] == [16, 16]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert cli.run(["embed", str(model)]) == 2
    assert "stdin: no text" in capsys.readouterr().err


def test_embed_writes_vectors_to_new_file(model: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "vectors.npy"
    assert cli.run(["embed", str(model), "a day", "b", "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert cli.run(["embed", str(model), "another", "--out", str(out)]) == 2
    assert "vectors.npy already exists" in capsys.readouterr().err
    np.testing.assert_array_equal(np.load(out), bertkit.pipeline("embed", model)(["a day", "b"]))


def test_embed_reports_truncated_texts(model: Path, capsys: Captured) -> None:
    assert cli.run(["embed", str(model), "rain " * 99, "rain", "--long", "truncate"]) == 0
    assert "1 of 2 texts were truncated to 64 tokens" in capsys.readouterr().err


def test_embed_accepts_closed_output_pipe(model: Path) -> None:
    """The shell command is `bertkit embed ... | head -1`."""
    code = "import sys; from bertkit import cli; sys.exit(cli.run(sys.argv[1:]))"
    texts = [f"text {i}" for i in range(300)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "embed", str(model), *texts],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 0
    assert not err


def test_stdin_ignores_bom_and_carriage_returns(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffa day\r\na day\n"))
    assert cli.run(["embed", str(model)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_embed_reports_prompt_by_name_or_text(
    model: Path, tmp_path: Path, capsys: Captured
) -> None:
    folder = tmp_path / "prompted"
    shutil.copytree(model, folder)
    prompts = Prompts({"query": "rain ", "document": ""})
    width = bertkit.load(model).model.config.hidden
    write_pooling(folder, Pooling(prompts=prompts), hidden=width, length=16)

    def embed(*words: str) -> tuple[list[float], str]:
        assert cli.run(["embed", str(folder), "a day", *words]) == 0
        out, err = capsys.readouterr()
        return json.loads(out), err.strip()

    bare, message = embed()
    assert message == "prompt: none (the model has query)"
    named, message = embed("--prompt", "query")
    assert message == "prompt: 'rain '"
    assert embed("--prompt", "rain ")[0] == named
    assert np.abs(np.subtract(bare, named)).max() > 1e-2
    out = tmp_path / "v.npy"
    assert cli.run(["embed", str(folder), "a", "--prompt", "qurey", "--out", str(out)]) == 2
    assert (
        "'qurey' is not a prompt of this model (it has query, document)" in capsys.readouterr().err
    )
    assert not out.exists()
