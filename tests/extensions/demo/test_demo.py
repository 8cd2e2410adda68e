"""The demo runs from a folder of text to a report that shows what happened."""

import math
import re
from pathlib import Path

import pytest
from markupsafe import Markup
from tests.factories import tiny_tokenizer

import bertkit
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.demo import demo as recipe
from bertkit.extensions.demo.demo import demo
from bertkit.extensions.demo.demo_report import DemoReport
from bertkit.recipes.prepare import prepare


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "VOCAB", 600)
    monkeypatch.setattr(recipe, "SEEDS", (0, 1))
    monkeypatch.setattr(recipe, "PER_LABEL", {"train": 8, "dev": 8})
    monkeypatch.setattr(recipe, "PASSAGE_SENTENCES", 1)
    config = {**recipe.CONFIG, "train.batch_size": "8", "model.hidden": "32"}
    monkeypatch.setattr(recipe, "CONFIG", {**config, "train.evaluate_samples": "16"})


def test_from_a_folder_to_a_report(small: None, tmp_path: Path, english: list[str]) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for part in range(4):
        (folder / f"part{part}.txt").write_text("\n\n".join(english[part::4]), encoding="utf-8")
    out = tmp_path / "demo"
    page = demo(out, text=[folder], steps=12).read_text(encoding="utf-8")
    assert page.count('<div class="word">') >= 4
    assert "<svg" in page
    assert "http" not in page.replace("http-equiv", "")
    start = r'<th scope="row">(random weights|pretrained)</th><td class="number">(0\.\d+)'
    rows = re.findall(start, page)
    assert [name for name, _ in rows] == ["random weights", "pretrained"]
    for name in ("model", "untrained"):
        assert set(bertkit.load(out / name).model.heads) == {"mlm", "nsp"}
    assert bertkit.load(out / "finetuned" / "model" / "seed-1").labels == (
        "part0",
        "part1",
        "part2",
        "part3",
    )
    assert "no benefit of pretraining" in page
    with pytest.raises(ConfigError, match="already exists"):
        demo(out, text=[folder], steps=12)
    with pytest.raises(ConfigError, match="steps must be at least 1, got 0"):
        demo(tmp_path / "none", text=[folder], steps=0)


@pytest.mark.parametrize(
    ("untrained", "pretrained", "loss", "said"),
    [
        (
            (0.3, 0.4),
            (0.5, 0.6),
            4.0,
            r"^accuracy 0.550 with .* 0.350 without: the worst seed",
        ),
        (
            (0.3, 0.4),
            (0.2, 0.3),
            6.1,
            r"0.250 with .* no benefit .* 6.10, .* 6.50 from token",
        ),
        ((0.3, 0.4), (0.4, 0.6), 6.1, "no benefit.* use more than 82 --steps"),
        ((0.9, 0.9), (0.9, 0.9), 4.0, "no benefit.* too easy or too hard .* other --text"),
    ],
)
def test_the_report_says_whether_it_shows_what_it_is_for(
    untrained: tuple[float, ...], pretrained: tuple[float, ...], loss: float, said: str
) -> None:
    report = DemoReport(
        corpus={},
        pretraining={"steps": 82, "mlm_loss": loss},
        frequency_loss=6.5,
        curve=Markup(),
        words=[],
        labels=[],
        rows={},
        accuracy={"untrained": untrained, "model": pretrained},
        seconds=1.0,
    )
    assert re.search(said, report.verdict())


def test_counting_pieces_has_the_loss_of_their_entropy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a a b c\n\na b", encoding="utf-8")
    texts, tokenizer = [tmp_path / "a.txt"], tiny_tokenizer("abc")
    corpus = prepare(texts, tokenizer=tokenizer, out=tmp_path / "corpus")
    shares = [3 / 6, 2 / 6, 1 / 6]
    wanted = -sum(share * math.log(share) for share in shares)
    assert recipe._frequency_loss(corpus) == pytest.approx(wanted)


def test_text_of_one_source_is_too_little(small: None, tmp_path: Path) -> None:
    collected = [("only", "This sentence has quite enough words to be taken. " * 50)]
    with pytest.raises(DataError, match="got 0"):
        recipe._labeled_passages(collected)
    text = tmp_path / "book.txt"
    text.write_text(collected[0][1], encoding="utf-8")
    with pytest.raises(DataError, match="at least two sources"):
        demo(tmp_path / "out", text=[text])
    assert not (tmp_path / "out").exists()


def test_train_and_dev_passages_are_apart(small: None) -> None:
    collected = [
        (
            source,
            " ".join(f"The {source} number {i} is a sentence of enough words." for i in range(60)),
        )
        for source in ("first", "second")
    ]
    train, dev = recipe._labeled_passages(collected)
    assert len(train) == len(dev) == 16
    assert not {e.text for e in train} & {e.text for e in dev}
    assert {e.label for e in train} == {"first", "second"}
