"""Tasks of GLUE by their folders, each scored by its metric, the paper's beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import tiny_folder

from bertkit import cli
from bertkit.errors import ConfigError, DataError
from bertkit.recipes.finetune import Finetune
from bertkit.recipes.glue import glue
from bertkit.text.vocabulary_training import train as train_tokenizer

SETTINGS = Finetune(epochs=1, batch_size=8, precision="fp32")


def lines(count: int, form: str, first: str = "") -> str:
    rows = (form.format(i=i, label=i % 2, word=("class", "loop")[i % 2]) for i in range(count))
    return first + "".join(rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As GLUE is published: CoLA without a header; two sets of dev; quantities."""
    place = tmp_path_factory.mktemp("glue")
    sentence = "it is the {word} of number {i}"
    for folder, files in {
        "CoLA": {
            name: lines(16, "gj04\t{label}\t\t" + sentence + "\n")
            for name in ("train.tsv", "dev.tsv", "test.tsv")
        },
        "MNLI": {
            name: lines(
                24 if name == "train.tsv" else 8,
                "{i}\t" + sentence + "\tanother one\tkind{label}\n",
                "index\tsentence1\tsentence2\tgold_label\n",
            )
            for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv")
        },
        "stsb": {
            name: lines(
                12,
                '{{"sentence1": "' + sentence + '", "sentence2": "a {word}", "score": {i}.5}}\n',
            )
            for name in ("train.jsonl", "validation.jsonl")
        },
        "WNLI": {"train.tsv": "a\tb\n"},
    }.items():
        (place / folder).mkdir()
        for name, text in files.items():
            (place / folder / name).write_text(text, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> str:
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("base") / "model"
    return str(tiny_folder(folder, tokenizer, "mlm", "nsp", hidden=16, intermediate=16))


def test_each_task_is_scored_by_its_metric_and_resumed(
    data: Path, base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["glue", base, str(data), "--out", str(out), "--epochs", "1", "--seeds", "2"]
    assert cli.run(words) == 0
    told = capsys.readouterr()
    assert f"{data}: without SST-2, MRPC, QQP, QNLI, RTE" in told.err
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in told.out.splitlines()[2:]]
    assert [row[:4] + row[5:6] for row in rows] == [
        ["CoLA", "matthews", "16", "16", "52.1"],
        ["STS-B", "spearman", "12", "12", "85.8"],
        ["MNLI", "accuracy", "24", "8", "84.6"],
    ]
    record = json.loads((out / "glue.json").read_text("utf-8"))["tasks"]
    assert {name: len(one["each"]) for name, one in record.items()} == dict.fromkeys(record, 2)
    own = json.loads((out / "MNLI" / "seeds.json").read_text("utf-8"))["scores"]["accuracy"]
    assert record["MNLI"]["mean"] == pytest.approx(100 * own["mean"])
    before = (out / "CoLA" / "seed-0" / "scores.json").stat().st_mtime_ns
    assert cli.run([*words, "--resume"]) == 0
    assert (out / "CoLA" / "seed-0" / "scores.json").stat().st_mtime_ns == before
    assert cli.run(words) == 2
    assert "exists already" in capsys.readouterr().err


def test_what_is_no_glue_is_told(data: Path, base: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match="no such folder"):
        glue(base, tmp_path / "none", out=out)
    with pytest.raises(DataError, match="has no folder of a task of GLUE; they are called CoLA"):
        glue(base, data / "WNLI", out=out)
    (tmp_path / "data" / "RTE").mkdir(parents=True)
    (tmp_path / "data" / "RTE" / "train.tsv").write_text("a\tb\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"RTE: no file of dev or valid; it is \.tsv, "):
        glue(base, tmp_path / "data", out=out)
    with pytest.raises(ConfigError, match="no run to resume here"):
        glue(base, data, out=out, resume=True)
    assert not out.exists()
