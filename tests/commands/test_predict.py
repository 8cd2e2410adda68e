"""The command that asks a fine-tuned model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit import cli

Captured = pytest.CaptureFixture[str]


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
