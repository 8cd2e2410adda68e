"""Reports of fine-tuning: scores per label, test scores, calibration, and thresholds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tests.factories import tiny_folder

import bertkit
from bertkit import cli
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.recipes.evaluate import evaluate, numbers
from bertkit.recipes.final_test import read_test
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import LabelExample
from bertkit.tasks.task import run_head
from bertkit.text.vocabulary_training import train as train_tokenizer

SETTINGS = Finetune(epochs=2, batch_size=8, learning_rate=1e-2, precision="fp32", warmup=0.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("base") / "model"
    return tiny_folder(folder, tokenizer, "mlm", "nsp", hidden=32, intermediate=64)


def rows(count: int, first: int = 0, **labels: str) -> list[LabelExample]:
    """Return texts about a class or a loop, with their labels."""
    named = labels or {"class": "thing", "loop": "doing"}
    made = []
    for i in range(first, first + count):
        word = list(named)[i % len(named)]
        made.append(
            LabelExample(f"the {word} number {i} of it", None, named[word], f"rows:{i + 1}")
        )
    return made


def record(out: Path, name: str = "scores.json") -> dict[str, Any]:
    read: dict[str, Any] = json.loads((out / name).read_text(encoding="utf-8"))
    return read


@pytest.fixture(scope="module")
def tuned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    out = tmp_path_factory.mktemp("tuned") / "out"
    scores = finetune(
        Classify, base, train=rows(80), dev=0.2, test=rows(10, 200), out=out, settings=SETTINGS,
        options={"calibrate": True},
    )  # fmt: skip
    return out, scores


def test_scores_include_each_label(tuned: tuple[Path, dict[str, float]]) -> None:
    out, scores = tuned
    kept = record(out)
    assert sum(map(sum, kept["confusion"]["counts"])) == kept["data"]["dev"]["rows"] == 16
    right = sum(kept["confusion"]["counts"][i][i] for i in range(2))
    assert right / 16 == scores["accuracy"]
    assert kept["by_label"]["thing"]["support"] == 8
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "| doing | " in card
    assert "| expected ↓, predicted → | doing | thing |" in card


def test_scores_file_records_held_out_examples(tuned: tuple[Path, dict[str, float]]) -> None:
    out, _ = tuned
    data = record(out)["data"]
    assert {name: part["rows"] for name, part in data.items()} == {
        "train": 64,
        "dev": 16,
        "test": 10,
    }
    assert data["dev"]["held_out"] == {"share": 0.2, "seed": 0, "from": "train"}
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "16 examples (held out of train: fraction 0.2, seed 0)" in card


def test_test_scores_are_stored_separately(tuned: tuple[Path, dict[str, float]]) -> None:
    out, scores = tuned
    test_record = record(out, "test.json")
    again = evaluate(str(out), rows(10, 200))
    assert test_record["scores"] == numbers(again)
    assert scores["test_accuracy"] == again["accuracy"]
    assert test_record["confusion"] == again["confusion"]
    assert "test_accuracy" not in record(out)["dev"]
    assert read_test(out) == {
        f"test_{name}": value for name, value in test_record["scores"].items()
    }
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "## Scores on test" in card
    assert card.index("## Scores on dev") < card.index("## Scores on test")


def test_probabilities_are_calibrated_on_dev(tuned: tuple[Path, dict[str, float]]) -> None:
    out, _ = tuned
    about = record(out)["calibration"]
    temperature = bertkit.load(out).settings["bertkit"]["task"]["options"]["temperature"]
    assert about["temperature"] == temperature
    assert temperature != 1.0
    assert set(record(out, "test.json")["calibration"]) == set(about)
    ready = bertkit.pipeline("classify", out)
    (row,) = run_head(
        ready.task,
        ready.engine,
        ready.task.features(
            [LabelExample("the class of it")], ready.tokenizer, 32, long="error", labeled=False
        ),
    )
    expected = torch.softmax(torch.from_numpy(row[0]) / temperature, -1)
    given = list(ready("the class of it").scores.values())
    assert given == pytest.approx(expected.tolist())
    assert given != pytest.approx(torch.softmax(torch.from_numpy(row[0]), -1).tolist())


def test_resume_of_finished_run_returns_its_scores(
    base: Path, tuned: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    given: dict[str, Any] = {"train": rows(16), "test": rows(4, 200), "settings": SETTINGS}
    first = finetune(Classify, base, dev=0.25, out=tmp_path / "a", **given)
    assert finetune(Classify, base, dev=0.25, out=tmp_path / "a", resume=True, **given) == first
    with pytest.raises(ConfigError, match=r"share \(was 0\.25\)"):
        finetune(Classify, base, dev=0.5, out=tmp_path / "a", resume=True, **given)
    (tmp_path / "a" / "test.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="damaged"):
        finetune(Classify, base, dev=0.25, out=tmp_path / "a", resume=True, **given)


def test_dev_and_test_can_be_fractions_of_train(base: Path, tmp_path: Path) -> None:
    out, given = tmp_path / "out", {"train": rows(32), "dev": 0.25, "settings": SETTINGS}
    first = finetune(Classify, base, test=0.125, out=out, **given)
    data = record(out)["data"]
    assert [data[name]["rows"] for name in ("train", "dev", "test")] == [20, 8, 4]
    assert record(out, "test.json")["rows"] == 4
    assert {"test_accuracy", "accuracy"} <= set(first)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "20 examples (without dev and test: fraction 0.375, seed 0)" in card
    assert "4 examples (held out of train: fraction 0.125, seed 0)" in card
    assert finetune(Classify, base, test=0.125, out=out, resume=True, **given) == first
    with pytest.raises(ConfigError, match=r"test\.held_out\.share \(was 0\.125\)"):
        finetune(Classify, base, test=0.25, out=out, resume=True, **given)


def test_metric_setting_selects_the_best_epoch(base: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, metric="matthews", epochs=3)
    finetune(
        Classify, base, train=rows(32), dev=rows(8, 100), out=tmp_path / "a", settings=settings
    )
    kept = record(tmp_path / "a")
    assert kept["metric"] == "matthews"
    assert kept["dev"]["matthews"] == max(epoch["matthews"] for epoch in kept["epochs"])
    wrong = replace(SETTINGS, metric="f2")
    with pytest.raises(
        ConfigError, match=r"does not have the score 'f2' with these settings; known"
    ):
        finetune(Classify, base, train=rows(8), dev=rows(4), out=tmp_path / "b", settings=wrong)
    assert not (tmp_path / "b").exists()


def test_multi_label_thresholds_are_selected_on_dev(base: Path, tmp_path: Path) -> None:
    labels = {"class": '["thing"]', "loop": '["doing", "thing"]', "stop": "[]"}
    given: dict[str, Any] = {"train": rows(48, **labels), "dev": rows(12, 100, **labels)}
    out = tmp_path / "learned"
    scores = finetune(
        Classify, base, test=rows(12, 200, **labels), out=out, settings=SETTINGS, **given
    )
    kept = bertkit.load(out).settings["bertkit"]["task"]["options"]
    assert len(kept["thresholds"]) == 2
    assert kept["threshold"] is None
    assert {"best_f1_micro", "test_f1_micro"} <= set(scores)
    assert record(out)["metric"] == "best_f1_micro"
    answer = bertkit.pipeline("classify", out)("the loop of it")
    assert answer.labels == [
        label
        for label, least in sorted(
            zip(answer.scores, kept["thresholds"], strict=True),
            key=lambda pair: -answer.scores[pair[0]],
        )
        if answer.scores[label] >= least
    ]
    fixed = tmp_path / "fixed"
    scores = finetune(
        Classify, base, out=fixed, settings=SETTINGS, options={"threshold": 0.4}, **given
    )
    assert "f1_micro" in scores
    assert bertkit.load(fixed).settings["bertkit"]["task"]["options"]["thresholds"] == []


def test_finetune_command_holds_out_dev_and_tests(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, part in (("train", rows(32)), ("test", rows(8, 100))):
        lines = "".join(f"{row.text}\t{row.label}\n" for row in part)
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + lines, encoding="utf-8")
    words = ["finetune", "classify", "--model", str(base), "--train", str(tmp_path / "train.tsv")]
    words += ["--dev", "0.25", "--test", str(tmp_path / "test.tsv"), "--epochs", "1"]
    words += ["--metric", "f1", "--out", str(tmp_path / "out")]
    assert cli.run(words) == 0
    printed = capsys.readouterr()
    assert "test_accuracy" in json.loads(printed.out)
    for line in ("dev: 8 of 32 rows of train, held out (seed 0)", "dev, label by label:", "test, "):
        assert line in printed.err
    words[words.index("0.25")] = "1.5"
    words[-1] = str(tmp_path / "other")
    assert cli.run(words) == 2
    assert "a fraction between 0 and 1" in capsys.readouterr().err


def test_finetune_rejects_unknown_test_labels_before_training(base: Path, tmp_path: Path) -> None:
    strange = [LabelExample("a text", None, "other", "test.tsv:3")]
    with pytest.raises(DataError, match=r"test\.tsv:3: label 'other'"):
        finetune(Classify, base, train=rows(8), dev=rows(4), test=strange, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
