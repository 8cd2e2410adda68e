"""Training, verdict, and report of the demo."""

import math
import re
from collections import Counter
from pathlib import Path

import pytest
from tests.factories import tiny_tokenizer

import bertkit
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.demo import demo as recipe
from bertkit.extensions.demo.demo import demo
from bertkit.recipes.prepare import prepare


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "VOCAB", 600)
    monkeypatch.setattr(recipe, "SEEDS", (0, 1))
    monkeypatch.setattr(recipe, "PER_LABEL", {"train": 8, "dev": 8})
    monkeypatch.setattr(recipe, "PASSAGE_SENTENCES", 1)
    config = {**recipe.CONFIG, "train.batch_size": "8", "model.hidden": "32"}
    monkeypatch.setattr(recipe, "CONFIG", {**config, "train.evaluate_samples": "16"})


def test_demo_fine_tunes_models_from_text(
    small: None, tmp_path: Path, english: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for part in range(4):
        (folder / f"part{part}.txt").write_text("\n\n".join(english[part::4]), encoding="utf-8")
    out = tmp_path / "demo"
    page = demo(out, text=[folder], steps=12).read_text(encoding="utf-8")
    assert "<svg" in page
    assert all(name in page for name in ("random weights", "pretrained", "accuracy"))
    log = capsys.readouterr().err
    found = re.findall(r"\[MASK\].*  \(\w+\): \S+ 0\.\d\d, \S+ 0\.\d\d, \S+ 0\.\d\d$", log, re.M)
    assert len(found) == recipe.MASKED_SENTENCES
    assert "no benefit of pretraining" in log
    assert set(bertkit.load(out / "model").model.heads) == {"mlm", "nsp"}
    labels = bertkit.load(out / "finetuned" / "pretrained" / "seed-1").labels
    assert labels == ("part0", "part1", "part2", "part3")
    with pytest.raises(ConfigError, match="already exists"):
        demo(out, text=[folder], steps=12)
    with pytest.raises(ConfigError, match="steps must be at least 1, got 0"):
        demo(tmp_path / "none", text=[folder], steps=0)


@pytest.mark.parametrize(
    ("untrained", "pretrained", "loss", "message"),
    [
        ((0.3, 0.4), (0.5, 0.6), 4.0, r"^accuracy 0.550 with .* 0.350 without: the worst seed"),
        ((0.3, 0.4), (0.2, 0.3), 6.1, r"0.250 with .* no benefit .* 6.10, .* 6.50 from token"),
        ((0.3, 0.4), (0.4, 0.6), 6.1, "no benefit.* use more than 82 --steps"),
        ((0.9, 0.9), (0.9, 0.9), 4.0, "no benefit.* too easy or too hard .* other --text"),
    ],
)
def test_verdict_compares_seeds_and_gives_a_reason(
    untrained: tuple[float, ...], pretrained: tuple[float, ...], loss: float, message: str
) -> None:
    accuracy = {"random weights": untrained, "pretrained": pretrained}
    assert re.search(message, recipe._verdict(accuracy, loss, 6.5, 82))


def test_frequency_loss_equals_token_entropy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a a b c\n\na b", encoding="utf-8")
    texts, tokenizer = [tmp_path / "a.txt"], tiny_tokenizer("abc")
    corpus = prepare(texts, tokenizer=tokenizer, out=tmp_path / "corpus")
    fractions = [3 / 6, 2 / 6, 1 / 6]
    expected = -sum(fraction * math.log(fraction) for fraction in fractions)
    assert recipe._frequency_loss(corpus) == pytest.approx(expected)


def test_demo_rejects_text_of_one_source(small: None, tmp_path: Path) -> None:
    sentences = (f"Sentence number {i} has quite enough words to be taken." for i in range(60))
    collected = [("only", " ".join(sentences))]
    with pytest.raises(DataError, match="it has 1"):
        recipe._labeled_passages(collected)
    text = tmp_path / "book.txt"
    text.write_text(collected[0][1], encoding="utf-8")
    with pytest.raises(DataError, match=r"at least two sources .* it has 1"):
        demo(tmp_path / "out", text=[text])
    assert not (tmp_path / "out").exists()


def test_train_and_dev_passages_are_disjoint(small: None) -> None:
    collected = []
    for source in ("first", "second"):
        rows = [f"The {source} number {i} is a sentence of enough words." for i in range(60)]
        collected.append((source, " ".join(rows)))
    train, dev = recipe._labeled_passages(collected)
    assert len(train) == len(dev) == 16
    assert not {e.text for e in train} & {e.text for e in dev}
    assert Counter(e.label for e in train) == Counter(e.label for e in dev)
    assert Counter(e.label for e in train) == {"first": 8, "second": 8}
