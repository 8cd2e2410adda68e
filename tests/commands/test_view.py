"""Tests of `bertkit view explain`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit import cli

Captured = pytest.CaptureFixture[str]


def test_explain_writes_page_and_keeps_existing_file(
    tiny: Path, tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "page.html"
    words = ["view", "explain", str(tiny), "a b c", "--pair", "c d", "--out", str(out)]
    assert cli.run(words) == 0
    assert capsys.readouterr() == ("", f"{out}: 8 tokens, 1 layers of 2 heads\n")
    assert "a b c" in out.read_text(encoding="utf-8")
    assert cli.run(words) == 2
    assert "already exists" in capsys.readouterr().err


def test_explain_truncates_long_text_on_request(
    tiny: Path, tmp_path: Path, capsys: Captured
) -> None:
    words = ["view", "explain", str(tiny), "a " * 50, "--out", str(tmp_path / "page.html")]
    assert cli.run(words) == 2
    assert "52 tokens, but the maximum of the model is 32" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert cli.run([*words, "--long", "truncate"]) == 0
    assert "32 tokens, 1 layers of 2 heads; the text was truncated" in (capsys.readouterr().err)


def test_explain_checks_output_path_before_model(tmp_path: Path, capsys: Captured) -> None:
    assert cli.run(["view", "explain", "no-such-model", "a", "--out", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err
