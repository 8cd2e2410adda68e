"""Fine-tuning on a tiny set: learns, keeps the best epoch, and others open what it saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import bertkit
from bertkit import cli
from bertkit.checkpoint.folder import load, save
from bertkit.errors import CheckpointError, DataError
from bertkit.families import BERT
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.recipes import finetune as recipe
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune import Finetune, finetune, read_examples
from bertkit.tasks.classify import Example
from bertkit.text.train import train

SETTINGS = Finetune(epochs=4, batch_size=8, learning_rate=5e-3, precision="fp32", warmup=0.0)


@pytest.fixture(autouse=True)
def _one_thread(_repeatable: None) -> None:
    torch.set_num_threads(1)  # tiny models: a second thread only waits


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    torch.manual_seed(0)
    tokenizer = train(english[:5], kind="wordpiece", size=300)
    config = TransformerConfig(
        vocab=tokenizer.vocab_size, hidden=32, layers=1, heads=2, intermediate=64, length=32
    )
    folder = tmp_path_factory.mktemp("base") / "model"
    save(folder, build(config, ("mlm", "nsp")), tokenizer, BERT)
    return folder


def rows(count: int, first: int = 0) -> list[Example]:
    """Texts whose label is whether they speak of a class or of a loop."""
    found = []
    for i in range(first, first + count):
        word, label = ("class", "thing") if i % 2 else ("loop", "doing")
        found.append(Example(f"the {word} number {i} of the statement", None, label, i + 2))
    return found


def tsv(path: Path, examples: list[Example]) -> Path:
    lines = [f"{row.text}\t{row.label}\n" for row in examples]
    path.write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tuned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("tuned") / "out"
    settings = Finetune(
        epochs=16, batch_size=8, learning_rate=1e-2, precision="fp32", weight_decay=0.0
    )
    scores = finetune(base, train=rows(48), dev=rows(16, 100), out=out, settings=settings)
    return out, scores


def test_it_learns(tuned: tuple[Path, dict[str, float]]) -> None:
    out, scores = tuned
    assert scores["accuracy"] == 1.0
    record = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert record["dev"] == scores
    assert record["rows"] == {"train": 48, "dev": 16}
    assert record["settings"]["learning_rate"] == 1e-2
    assert load(out).labels == ("doing", "thing")


def test_transformers_gives_the_same_logits(tuned: tuple[Path, dict[str, float]]) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[parity]'")
    out, _ = tuned
    texts = [row.text for row in rows(6, 200)]
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    encoded = transformers.AutoTokenizer.from_pretrained(out)(
        texts, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        logits = theirs(**encoded).logits
    ours, _ = bertkit.pipeline("classify", out).outputs(texts)
    torch.testing.assert_close(torch.from_numpy(ours), logits, atol=1e-5, rtol=0.0)
    assert theirs.config.id2label == {0: "doing", 1: "thing"}
    assert abs(ours[0] - logits[1].numpy()).max() > 1e-3  # the control: another row


def test_evaluate_and_predict_agree(
    tuned: tuple[Path, dict[str, float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, scores = tuned
    file = tsv(tmp_path / "dev.tsv", rows(16, 100))
    assert cli.run(["evaluate", str(out), str(file)]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert {k: evaluated[k] for k in ("accuracy", "f1", "matthews")} == pytest.approx(
        {k: scores[k] for k in ("accuracy", "f1", "matthews")}
    )
    assert evaluated["rows"] == 16
    assert cli.run(["predict", str(out), "--file", str(file)]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    actual = [row.label for row in rows(16, 100)]
    right = sum(a["label"] == b for a, b in zip(answers, actual, strict=True))
    assert right / 16 == evaluated["accuracy"]
    assert all(sum(a["scores"].values()) == pytest.approx(1.0) for a in answers)


def test_the_same_seed_gives_the_same_weights(base: Path, tmp_path: Path) -> None:
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        settings = Finetune(epochs=1, batch_size=8, learning_rate=5e-3, precision="fp32", seed=seed)
        finetune(base, train=rows(16), dev=rows(4), out=tmp_path / name, settings=settings)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_the_best_epoch_is_kept(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores that fall after the second epoch: the folder must hold the second."""
    given = iter([0.5, 0.75, 0.6, 0.75])
    kept: list[bytes] = []

    def score(self: Any, outputs: Any, examples: Any) -> dict[str, float]:
        file = tmp_path / "out" / "model.safetensors"
        kept.append(file.read_bytes() if file.exists() else b"")
        return {"accuracy": next(given)}

    monkeypatch.setattr(recipe.Classify, "score", score)
    best = finetune(base, train=rows(16), dev=rows(4), out=tmp_path / "out", settings=SETTINGS)
    assert best == {"accuracy": 0.75, "epoch": 2}
    final = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert kept[0] == b""
    assert kept[1] != kept[2] == kept[3] == final


def test_a_kept_epoch_survives_what_comes_after(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter([{"accuracy": 0.5}])

    def score(self: Any, outputs: Any, examples: Any) -> dict[str, float]:
        try:
            return next(calls)
        except StopIteration:
            raise DataError("the disk fell over") from None

    monkeypatch.setattr(recipe.Classify, "score", score)
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"fell over; .*out holds epoch 1, the best"):
        finetune(base, train=rows(16), dev=rows(4), out=out, settings=SETTINGS)
    assert load(out).labels == ("doing", "thing")


def test_pairs_and_numbers(base: Path, tmp_path: Path) -> None:
    examples = [
        Example(f"the loop {i}", "the loop" if i % 2 else "a class", f"{i % 2 + 0.5}", i)
        for i in range(16)
    ]
    out = tmp_path / "out"
    scores = finetune(base, train=examples, dev=examples, out=out, settings=SETTINGS)
    assert set(scores) == {"pearson", "spearman", "epoch"}
    ready = bertkit.pipeline("classify", out)
    (answer,) = ready(["the loop 1"], ["the loop"])
    assert answer.label == "score"
    assert evaluate(ready, examples, name="rows")["pearson"] == pytest.approx(scores["pearson"])


def test_rows_longer_than_the_model_are_cut_and_said(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = [*rows(4), Example("rain " * 99, None, "doing", 9)]
    settings = Finetune(epochs=1, batch_size=8, precision="fp32")
    finetune(base, train=examples, dev=rows(4), out=tmp_path / "out", settings=settings)
    assert "train: 1 of 5 rows are longer than 32 tokens and were cut" in capsys.readouterr().err


def test_what_was_guessed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(read_examples(tsv(tmp_path / "a.tsv", rows(4)))) == 4
    err = capsys.readouterr().err
    assert "4 rows" in err
    assert "text = 'text', label = 'label'" in err


def test_an_untrained_head_is_not_scored(base: Path) -> None:
    loaded = load(base, heads=("classify",), labels=("doing", "thing"))
    with pytest.raises(CheckpointError, match="was never trained"):
        evaluate(bertkit.pipeline("classify", loaded), rows(4), name="rows")


def test_an_opened_model_must_have_the_labels(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for loaded in (load(base), load(base, heads=("classify",), labels=("x", "y", "z"))):
        with pytest.raises(DataError, match="opened for the labels"):
            finetune(loaded, train=rows(4), dev=rows(4), out=out)
    assert not out.exists()
    loaded = load(base, heads=("classify",), labels=("doing", "thing"))
    before = {k: v.clone() for k, v in loaded.model.state_dict().items()}
    finetune(loaded, train=rows(8), dev=rows(4), out=out, settings=Finetune(epochs=1))
    assert all(torch.equal(before[k], v) for k, v in loaded.model.state_dict().items())
