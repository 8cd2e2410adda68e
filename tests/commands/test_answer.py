"""Commands that ask a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit import cli

Captured = pytest.CaptureFixture[str]


def test_masked_words_and_next_sentences(model: Path, capsys: Captured) -> None:
    assert cli.run(["fill-mask", str(model), "a [MASK] day", "--top", "3"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["mask"] == 0
    assert len(answer["candidates"]) == 3
    assert cli.run(["fill-mask", str(model), "no mask"]) == 2
    assert "write [MASK]" in capsys.readouterr().err
    assert cli.run(["next-sentence", str(model), "a day", "a night"]) == 0
    assert 0.0 < json.loads(capsys.readouterr().out)["next"] < 1.0


def test_words_that_would_be_ignored_are_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a.tsv").write_text("text\nx\n", encoding="utf-8")
    file = ["--file", str(tmp_path / "a.tsv")]
    for words in (["text", *file], [*file, "--pair", "b"], ["text", "--text-column", "t"]):
        assert cli.run(["predict", "m", *words]) == 2
        assert "--file" in capsys.readouterr().err
    assert cli.run(["predict", "m", str(tmp_path / "a.tsv")]) == 2
    assert "a.tsv: a file, and not a text; its rows are answered with --file" in (
        capsys.readouterr().err
    )
