"""Tests of `bertkit predict`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit import cli

Captured = pytest.CaptureFixture[str]


def test_predict_rejects_texts_combined_with_file(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a.tsv").write_text("text\nx\n", encoding="utf-8")
    file = ["--file", str(tmp_path / "a.tsv")]
    for words in (["text", *file], [*file, "--pair", "b"], ["text", "--text-column", "t"]):
        assert cli.run(["predict", "m", *words]) == 2
        assert "--file" in capsys.readouterr().err
    assert cli.run(["predict", "m", str(tmp_path / "a.tsv")]) == 2
    assert "a.tsv: expected a text, got a file; pass the file with" in (capsys.readouterr().err)


def test_predict_runs_a_pipeline(model: Path, capsys: Captured) -> None:
    fill = ["predict", str(model), "--pipeline", "fill-mask"]
    assert cli.run([*fill, "a [MASK] day", "--top", "3"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["mask"] == 0
    assert len(answer["candidates"]) == 3
    assert cli.run([*fill, "no mask"]) == 2
    assert "replace a word by [MASK]" in capsys.readouterr().err
    pair = ["predict", str(model), "a day", "--pair", "a night", "--pipeline", "next-sentence"]
    assert cli.run(pair) == 0
    assert 0.0 < json.loads(capsys.readouterr().out)["next"] < 1.0
    words = ["predict", str(model), "a day", "--pipeline", "token-embeddings", "--layer", "0"]
    assert cli.run(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["tokens"]) == len(answer["embeddings"]) == len(answer["offsets"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--top", "3"], "--top: no such option without --pipeline"),
        (["--fiel", "rows.tsv"], "did you mean 'file'?"),
        (["--pipeline", "fill-mask", "--layer", "1"], "layer: no such setting"),
        (["--pipeline", "fill-mask", "--top", "many"], "top: expected `int`, got `str`"),
        (
            ["--pipeline", "fill-mask", "--pair", "a"],
            "--pair is not supported by the pipeline fill-mask",
        ),
        (["--pipeline", "fill-mask", "--out", "x"], "--out is not supported with --pipeline"),
        (["--pipeline", "next-sentence"], "1 texts, but 0 --pair; use one per text"),
        (["--pipeline", "fill"], "did you mean 'fill-gap'?"),
    ],
)
def test_predict_rejects_options_of_other_pipelines(
    words: list[str], message: str, model: Path, capsys: Captured
) -> None:
    assert cli.run(["predict", str(model), "text", *words]) == 2
    assert message in capsys.readouterr().err
