"""Every combination is run once, the best by dev is kept, and rows that chose nothing score it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.factories import tiny_folder

import bertkit
from bertkit import cli
from bertkit.errors import CheckpointError, ConfigError, DataError, TrainingError
from bertkit.recipes.finetune import Finetune
from bertkit.recipes.grid import finetune_grid
from bertkit.recipes.runs import runs
from bertkit.storage import sha256
from bertkit.tasks.classify import Classify, LabelExample
from bertkit.text.vocabulary_training import train as train_tokenizer
from bertkit.training.epochs import drop_weights, read_seeds

SETTINGS = Finetune(epochs=1, batch_size=8, precision="fp32", warmup=0.0)
GRID = ["learning_rate=1e-9,2e-2", "epochs=1,4"]
CELLS = [f"learning_rate={rate},epochs={count}" for rate in ("1e-9", "2e-2") for count in (1, 4)]


def rows(count: int, first: int = 0) -> list[LabelExample]:
    words = [("class", "thing"), ("loop", "doing")]
    pairs = [(i, *words[i % 2]) for i in range(first, first + count)]
    return [LabelExample(f"the {w} number {i}", None, label, f"rows:{i}") for i, w, label in pairs]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("grid") / "base"
    return tiny_folder(folder, tokenizer, "mlm", "nsp", hidden=32, intermediate=32)


def tried(
    base: Path, out: Path, grid: list[str] = GRID, count: int = 1, **more: Any
) -> dict[str, Any]:
    given = {"train": rows(64), "dev": rows(16, 100), "settings": SETTINGS, **more}
    return finetune_grid(grid, count, Classify, base, out=str(out), **given)


def test_the_best_of_all_is_the_folder_and_test_scores_it_once(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    scores = tried(base, out, test=rows(8, 200))
    told = json.loads((out / "grid.json").read_text("utf-8"))
    assert list(told["scores"]) == CELLS
    best = max(CELLS, key=lambda name: told["scores"][name]["accuracy"])
    assert scores["best"] == told["best"] == best
    assert best == CELLS[-1]  # a rate of 1e-9 learns nothing, and one epoch less than four
    assert sha256(out / "model.safetensors") == sha256(out / best / "model.safetensors")
    assert 0 <= scores["test_accuracy"] <= 1
    assert not list(out.glob("*/test.json"))
    assert read_seeds(out) is None
    card = (out / "README.md").read_text("utf-8")
    assert "So were its settings, among 4." in card
    assert "## Scores on test" in card
    assert "learning_rate = 0.02" in card
    said = capsys.readouterr().err
    assert f"{best}: the best of 4 by accuracy on dev" in said
    assert "| learning_rate |" in said
    assert "as good on dev" not in said
    assert re.search(rf"^4 of 4: {best}: accuracy \d\.\d{{4}}$", said, re.M)
    assert "epoch 1: " not in said  # of a run that is one of many
    assert said.count("dev, label by label:") == 1
    weights = [path.parent.name for path in out.glob("*/*.safetensors")]
    assert weights == [best]
    assert (runs([str(out)]) or "").count("\n") == 5
    assert bertkit.pipeline("classify", out)(["the loop number 3"])

    before = {cell: (out / cell / "scores.json").stat().st_mtime_ns for cell in CELLS}
    (out / CELLS[1] / "scores.json").unlink()  # as if killed before its end
    again = tried(base, out, [GRID[0], "epochs=1,4,2"], test=rows(8, 200), resume=True)
    assert again["best"] in json.loads((out / "grid.json").read_text("utf-8"))["scores"]
    for cell in CELLS[:-1]:  # the weights of the last may be dropped for an equal one
        same = (out / cell / "scores.json").stat().st_mtime_ns == before[cell]
        assert same == (cell != CELLS[1])
    assert (out / "learning_rate=2e-2,epochs=2" / "scores.json").exists()


def test_that_several_are_as_good_is_told(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried(base, tmp_path / "all", ["learning_rate=1e-9,1e-4"])
    told = capsys.readouterr().err
    assert "learning_rate=1e-4: kept, and no better than the others: by accuracy on dev all" in told
    assert "Raise learning_rate (1e-09, 0.0001 were tried; small models want 1e-4 to 3e-4)" in told
    tried(base, tmp_path / "some", ["learning_rate=1e-9,2e-2,2.0e-2", "epochs=4"])
    told = capsys.readouterr().err
    assert "learning_rate=2e-2,epochs=4: the best of 3" in told
    assert "as good on dev: 'learning_rate=2.0e-2,epochs=4'" in told


def test_one_that_does_not_learn_ends_no_other(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert tried(base, out, ["learning_rate=1e30,2e-2"])["best"] == "learning_rate=2e-2"
    told = capsys.readouterr().err
    assert re.search(r"^1 of 2: learning_rate=1e30: failed: step \d+: the loss is", told, re.M)
    assert "the best of 1 by accuracy" in told
    assert list(json.loads((out / "grid.json").read_text("utf-8"))["scores"]) == [
        "learning_rate=2e-2"
    ]
    with pytest.raises(TrainingError, match=r"step \d+: the loss is"):
        tried(base, tmp_path / "none", ["learning_rate=1e30,2e30"])


def test_weights_of_all_are_kept_when_asked(base: Path, tmp_path: Path) -> None:
    tried(base, tmp_path / "out", ["epochs=1,2"], keep_all=True)
    assert len(list((tmp_path / "out").glob("*/model.safetensors"))) == 2
    words = ["--train", "a.tsv", "--dev", "b.tsv", "--out", str(tmp_path / "one"), "--keep-all"]
    assert cli.run(["finetune", "classify", "--model", str(base), *words]) == 2


def test_a_best_one_whose_weights_are_gone_is_named(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    best = tried(base, out, ["epochs=1,2"])["best"]
    drop_weights(out / best)
    with pytest.raises(CheckpointError, match=r"is the best now, and its weights were not kept"):
        tried(base, out, ["epochs=1,2"], resume=True)
    shutil.rmtree(out / best)
    assert tried(base, out, ["epochs=1,2"], resume=True)["best"] == best


def test_another_best_one_has_nothing_of_the_one_before(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = msgspec.structs.replace(SETTINGS, learning_rate=1e-9)  # so that all are as good
    first = tried(base, out, ["lora.rank=2"], settings=settings, test=rows(8, 200))
    assert (out / "adapter").is_dir()
    again = tried(base, out, ["lora.rank=2"], settings=settings, resume=True)
    assert again == first  # the control: of the same model the scores on test stay
    now = tried(base, out, ["lora.rank=0,2"], settings=settings, resume=True)
    assert now["best"] == "lora.rank=0"
    assert "test_accuracy" in first
    assert "test_accuracy" not in now
    assert "Scores on test" not in (out / "README.md").read_text("utf-8")
    assert not (out / "adapter").exists()


def test_seeds_of_each_are_means(base: Path, tmp_path: Path) -> None:
    scores = tried(base, tmp_path / "out", ["lora.rank=0,2"], count=2)
    kept = [path.parent for path in (tmp_path / "out").rglob("model.safetensors")]
    assert sorted(path.relative_to(tmp_path / "out").parts[:1] for path in kept) == [
        (),
        (scores["best"],),
        (scores["best"],),
        (scores["best"],),
    ]
    again = tried(base, tmp_path / "out", ["lora.rank=0,2"], count=2, resume=True)
    assert again == scores
    folder = tmp_path / "out" / scores["best"]
    summary = json.loads((folder / "seeds.json").read_text("utf-8"))["scores"]["accuracy"]
    assert scores["accuracy"] == summary["mean"]
    assert len(summary["each"]) == 2
    (tmp_path / "out" / "seeds.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"seeds\.json: damaged; run it again"):
        read_seeds(tmp_path / "out")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("learning_rate", "is not like learning_rate=1e-4,3e-4"),
        ("learning_rate=", "is not like learning_rate=1e-4,3e-4"),
        ("learning_rate=1e-4,,2", "is not like learning_rate=1e-4,3e-4"),
        ("lerning_rate=1e-4", "did you mean 'learning_rate'"),
        ("learning_rate=1e-4,fast", "learning_rate: expected `float`, got `str`"),
        ("epochs=0,1", "epochs: expected `int` >= 1"),
        ("patience=3", "patience: is named twice; give all its values in one line"),
        ("device=a/b,a:b", "device=a-b: two combinations have this name"),
        ("seed=1,2", "nothing to choose among; take seeds="),
    ],
)
def test_a_line_that_does_not_fit_is_told_before_work(
    line: str, sentence: str, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as told:
        tried(base, tmp_path / "out", ["patience=1,2", line])
    assert sentence in str(told.value)
    assert not (tmp_path / "out").exists()


def test_too_many_are_counted_before_they_are_made(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.recipes.grid._cells", lambda *_: pytest.fail("made"))
    many = ["patience=1,2", f"batch_size={','.join(map(str, range(1, 5_001)))}"]
    with pytest.raises(ConfigError, match="grid: 20,000 runs, and 100 are begun without asking"):
        tried(base, tmp_path / "out", many, count=2)
    assert not (tmp_path / "out").exists()


def test_rows_of_test_that_do_not_fit_are_told_before_work(base: Path, tmp_path: Path) -> None:
    other = [LabelExample("a class", None, "another", "rows:1")]
    with pytest.raises(DataError, match="label 'another' is not"):
        tried(base, tmp_path / "out", test=other)
    assert not (tmp_path / "out").exists()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["n", "", "yes"])
def test_a_person_is_asked(
    answer: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertkit.recipes.grid.MAX_RUNS", 1)
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    if answer == "yes":
        assert tried(base, tmp_path / "out", ["epochs=1,2"])["best"]
    else:
        with pytest.raises(ConfigError, match="2 runs, and 1 are begun without asking"):
            tried(base, tmp_path / "out", ["epochs=1,2"])


def test_by_command(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, examples in (("train", rows(16)), ("dev", rows(8, 100))):
        lines = "".join(f"{row.text}\t{row.label}\n" for row in examples)
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + lines, encoding="utf-8")
    files = ("--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv")
    words = ["finetune", "classify", "--model", base, *files, "--out", tmp_path / "out"]
    grid = ["--grid", "learning-rate=1e-4,1e-3", "--grid", "epochs=1"]
    assert cli.run([str(word) for word in [*words, *grid]]) == 0
    assert json.loads(capsys.readouterr().out)["best"].startswith("learning_rate=1e-")


def test_scores_that_do_not_compare_are_refused_before_work(base: Path, tmp_path: Path) -> None:
    numbers = [LabelExample(row.text, None, str(n % 2 + 1)) for n, row in enumerate(rows(8))]
    with pytest.raises(ConfigError, match="scored by accuracy and pearson, which do not compare"):
        tried(base, tmp_path / "out", ["regression=true,false"], train=numbers, dev=numbers)
    assert not (tmp_path / "out").exists()
