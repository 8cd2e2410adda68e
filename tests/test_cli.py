"""The command line: words in, exit codes and one sentence out."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import bertkit
from bertkit import cli
from bertkit.checkpoint.folder import save
from bertkit.families import BERT
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.text.train import train

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    torch.manual_seed(0)
    tokenizer = train(english[:5], kind="wordpiece", size=200)
    config = TransformerConfig(
        vocab=tokenizer.vocab_size, hidden=16, layers=1, heads=2, intermediate=32, length=64
    )
    folder = tmp_path_factory.mktemp("cli") / "model"
    save(folder, build(config, ("mlm", "nsp")), tokenizer, BERT)
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pretrian"], 'Did you mean "pretrain"?'),
        (["finetune", "clasify"], 'Did you mean "classify"?'),
        (["embed", "m", "t", "--poling", "cls"], "Did you mean --pooling?"),
        (["embed", "m", "t", "--pooling", "clss"], 'Did you mean "cls"?'),
        (["embed"], "requires an argument"),
        (["vocab", "train", "x", "--out", "y", "--size", "many"], "--size"),
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


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        raised(ZeroDivisionError(), monkeypatch)


def test_texts_come_from_stdin(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a day\n\nanother day\n"))
    assert cli.run(["embed", str(model)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(row) for row in rows] == [16, 16]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert cli.run(["embed", str(model)]) == 2
    assert "stdin: no text" in capsys.readouterr().err


def test_vectors_as_a_file(model: Path, tmp_path: Path, capsys: Captured) -> None:
    import numpy as np

    out = tmp_path / "vectors.npy"
    assert cli.run(["embed", str(model), "a day", "b", "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    np.testing.assert_array_equal(np.load(out), bertkit.pipeline("embed", model)(["a day", "b"]))


def test_what_was_cut_is_said(model: Path, capsys: Captured) -> None:
    assert cli.run(["embed", str(model), "rain " * 99, "rain", "--long", "truncate"]) == 0
    assert "1 of 2 texts are longer than 64 tokens and were cut" in capsys.readouterr().err


def test_masked_words_and_next_sentences(model: Path, capsys: Captured) -> None:
    assert cli.run(["fill-mask", str(model), "a [MASK] day", "--top", "3"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["place"] == 0
    assert len(answer["fillers"]) == 3
    assert cli.run(["fill-mask", str(model), "no mask"]) == 2
    assert "write [MASK]" in capsys.readouterr().err
    assert cli.run(["next-sentence", str(model), "a day", "a night"]) == 0
    assert 0.0 < json.loads(capsys.readouterr().out)["next"] < 1.0


def test_info_says_shape_and_heads(model: Path, capsys: Captured) -> None:
    assert cli.run(["info", str(model)]) == 0
    text = capsys.readouterr().out
    json.loads(text)
    assert '"mlm"' in text
    assert '"nsp"' in text


def test_a_reader_that_has_seen_enough_is_no_error(model: Path) -> None:
    """As in `bertkit embed ... | head -1`."""
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


def test_words_that_would_be_ignored_are_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a.tsv").write_text("text\nx\n", encoding="utf-8")
    file = ["--file", str(tmp_path / "a.tsv")]
    for words in (["text", *file], [*file, "--pair", "b"], ["text", "--text-column", "t"]):
        assert cli.run(["predict", "m", *words]) == 2
        assert "--file" in capsys.readouterr().err


def test_stdin_may_come_from_windows(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffa day\r\na day\n"))
    assert cli.run(["embed", str(model)]) == 0
    one, other = capsys.readouterr().out.splitlines()
    assert one == other
