"""`bertkit info` describes models, corpora, runs and run files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import tiny_folder

from bertkit import cli
from bertkit.recipes.model_sizes import variants
from bertkit.recipes.prepare import prepare
from bertkit.text.vocabulary_training import train

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("info")
    rows = [json.dumps({"text": text}) + "\n" for text in english[:30]]
    (folder / "text.jsonl").write_text("".join(rows), encoding="utf-8")
    tokenizer = train(english[:30], kind="wordpiece", size=600)
    prepare([folder / "text.jsonl"], tokenizer=tokenizer, out=folder / "out", processes=1)
    return folder / "out"


def test_info_of_a_model_shows_its_heads(
    tmp_path: Path, english: list[str], capsys: Captured
) -> None:
    tokenizer = train(english[:5], kind="wordpiece", size=200)
    model = tiny_folder(tmp_path / "model", tokenizer, "mlm", "nsp", length=64)
    assert cli.run(["info", str(model)]) == 0
    assert {"mlm", "nsp"} <= set(json.loads(capsys.readouterr().out)["heads"])


def test_info_of_a_corpus_prints_samples_and_counts(corpus: Path, capsys: Captured) -> None:
    words = ["info", str(corpus), "--count", "2", "--length", "32", "--pairs", "sop"]
    assert cli.run(words) == 0
    first, second, counts = capsys.readouterr().out.split("\n\n")
    assert first.startswith(("InOrder, ", "Swapped, "))
    assert "[CLS]" in second
    assert "documents                        30" in counts
    config = ["--run-file", "roberta-base", "--count", "1"]
    assert cli.run(["info", str(corpus), *config]) == 0
    assert not capsys.readouterr().out.startswith(("InOrder", "Swapped", "IsNext", "NotNext"))


def test_info_of_a_directory_prints_its_runs(tmp_path: Path, capsys: Captured) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}", encoding="utf-8")
        (tmp_path / name / "journal.jsonl").write_text(
            '{"step": 1, "loss": 2.5}\n', encoding="utf-8"
        )
    assert cli.run(["info", str(tmp_path)]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split()[1] for row in rows] == ["a", "b"]


def test_info_without_a_path_lists_the_run_files(capsys: Captured) -> None:
    assert cli.run(["info"]) == 0
    assert "albert-base" in capsys.readouterr().out
    assert cli.run(["info", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [v.name for v in variants()]


def test_info_rejects_options_that_do_not_apply(tiny: Path, capsys: Captured) -> None:
    assert cli.run(["info", str(tiny), "--count", "2"]) == 2
    assert f"{tiny}: not a corpus; remove" in capsys.readouterr().err
    assert cli.run(["info", str(tiny), "--json"]) == 2
    assert "--json is only supported for the list of run files" in capsys.readouterr().err
