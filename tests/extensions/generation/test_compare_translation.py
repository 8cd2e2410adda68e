"""Three models translate, from the same pairs; what was stopped goes on; nothing else is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import bertkit
from bertkit import cli
from bertkit.config import Settings
from bertkit.errors import BertkitError, ConfigError
from bertkit.extensions.generation import compare_translation as recipe
from bertkit.extensions.generation.bleu import evaluate_translation
from bertkit.extensions.generation.compare_translation import (
    ATTENTION,
    LSTM,
    TRANSFORMER,
    CompareTranslation,
    compare_translation,
)
from bertkit.training.journal import Journal

TINY = CompareTranslation(
    steps=8, batch_size=8, length=32, vocab_size=40, layers=1, hidden=16, dropout=0.0
)
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ZAHLEN = ("eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
MODELS = (LSTM, ATTENTION, TRANSFORMER)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers in two languages, in the other order, 2 to 6 in train and dev, 4 in `same`."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("columns")
    draws = torch.Generator().manual_seed(0)
    for part, count, lengths in (("train", 200, (2, 7)), ("dev", 60, (2, 7)), ("same", 30, (4, 5))):
        rows = [
            torch.randint(0, 9, (int(torch.randint(*lengths, (1,), generator=draws)),),
                          generator=draws).tolist()
            for _ in range(count)
        ]  # fmt: skip
        for name, words, way in (("de", ZAHLEN, 1), ("en", NUMBERS, -1)):
            text = "".join(" ".join(words[n] for n in row[::way]) + "\n" for row in rows)
            (place / f"{part}.{name}.txt").write_text(text, encoding="utf-8")
    return place


def files(place: Path, dev: str = "dev") -> dict[str, Any]:
    return {
        "source": place / "train.de.txt",
        "target": place / "train.en.txt",
        "dev_source": place / f"{dev}.de.txt",
        "dev_target": place / f"{dev}.en.txt",
    }


@pytest.fixture(scope="module")
def made(place: Path) -> tuple[Path, dict[str, Any]]:
    out = place / "made"
    return out, compare_translation(**files(place), out=out, settings=TINY)


def test_all_learn_from_the_same_pairs_for_as_many_steps(made: tuple[Path, dict[str, Any]]) -> None:
    out, result = made
    assert list(result["models"]) == list(result["scores"]) == list(MODELS)
    records = [
        [r for r in Journal(out / about["folder"] / "seed-0").records() if "tokens" in r]
        for about in result["models"].values()
    ]
    tokens = [[(row["step"], row["tokens"]) for row in rows] for rows in records]
    assert tokens[0] == tokens[1] == tokens[2]
    assert len(tokens[0]) == TINY.steps
    for (name, about), rows in zip(result["models"].items(), records, strict=True):
        seconds = sum(row["tokens"] / row["tokens_per_second"] for row in rows)
        assert result["scores"][name]["seconds"]["mean"] == pytest.approx(seconds)
        model = bertkit.load(out / about["folder"] / "seed-0").model
        assert about["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert [about["interaction"] for about in result["models"].values()] == [
        "one vector",
        "attention",
        "attention",
    ]


def test_scores_are_those_of_evaluate_translation(
    made: tuple[Path, dict[str, Any]], place: Path
) -> None:
    out, result = made
    for name, about in result["models"].items():
        folder = out / about["folder"] / "seed-0"
        again = evaluate_translation(folder, place / "dev.de.txt", place / "dev.en.txt")
        assert result["scores"][name]["BLEU"]["mean"] == again.bleu
    low, high = result["groups"][0]["low"], result["groups"][0]["high"]
    sides = [
        path.read_text(encoding="utf-8").split("\n")[:-1]
        for path in (place / "dev.de.txt", out / "lstm" / "seed-0.txt", place / "dev.en.txt")
    ]
    short = [row for row in zip(*sides, strict=True) if low <= len(row[0].split()) <= high]
    assert result["groups"][0]["pairs"] == len(short)
    _, texts, right = zip(*short, strict=True)
    expected = recipe.bleu(texts, right)
    assert result["scores"][LSTM][f"BLEU, {low}–{high} words"]["mean"] == expected


def test_it_is_kept_and_drawn(made: tuple[Path, dict[str, Any]]) -> None:
    out, result = made
    assert json.loads((out / "compare.json").read_text(encoding="utf-8")) == result
    page = (out / "compare.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert page.count('<th scope="col">LSTM + attention</th>') == 1
    assert "one vector" in page
    picture = (out / "compare.svg").read_text(encoding="utf-8")
    assert all(name in picture for name in MODELS)
    assert sum(group["pairs"] for group in result["groups"]) == 60
    for group in result["groups"]:
        assert f">{group['pairs']}</text>" in picture


def test_what_was_stopped_goes_on_to_the_same(
    made: tuple[Path, dict[str, Any]],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learned: list[Path] = []

    def stopping(*given: Any, out: Path, **more: Any) -> dict[str, float]:
        if len(learned) == 1:
            raise KeyboardInterrupt
        learned.append(out)
        return pretrain(*given, out=out, **more)

    pretrain, out = recipe.pretrain, tmp_path / "out"
    monkeypatch.setattr(recipe, "pretrain", stopping)
    with pytest.raises(KeyboardInterrupt, match="--resume"):
        compare_translation(**files(place), out=out, settings=TINY)
    monkeypatch.undo()
    again = {"settings": TINY, "out": out, "resume": True}
    with pytest.raises(ConfigError, match=r"exists already.*resume=True"):
        compare_translation(**files(place), out=out, settings=TINY)
    with pytest.raises(ConfigError, match="other settings or texts"):
        compare_translation(**files(place, "same"), **again)
    with pytest.raises(ConfigError, match="other settings or texts"):
        compare_translation(**files(place), **again | {"settings": CompareTranslation()})
    with pytest.raises(ConfigError, match="no comparison to resume here"):
        compare_translation(**files(place), **again | {"out": tmp_path / "none"})
    result = compare_translation(**files(place), **again)
    for name, about in result["models"].items():
        one, other = (
            load_file(folder / about["folder"] / "seed-0" / "model.safetensors")
            for folder in (out, made[0])
        )
        assert all(torch.equal(one[key], other[key]) for key in other)
        assert result["scores"][name]["BLEU"] == made[1]["scores"][name]["BLEU"]


def test_sentences_of_one_length_are_not_drawn_by_length(place: Path, tmp_path: Path) -> None:
    result = compare_translation(**files(place, "same"), out=tmp_path / "out", settings=TINY)
    assert len(result["groups"]) == 1
    sentence = "No scores by length: all sources have 4 words."
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert sentence in page
    assert "<svg" not in page
    assert sentence in (tmp_path / "out" / "compare.svg").read_text(encoding="utf-8")


def test_pairs_in_both_files_are_counted(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = files(place) | {
        "dev_source": place / "train.de.txt",
        "dev_target": place / "train.en.txt",
    }
    result = compare_translation(**same, out=tmp_path / "out", settings=TINY)
    assert result["dev_in_train"] == 200
    assert "200 of dev's 200 pairs stand in train, too" in capsys.readouterr().err


def test_letters_backwards_are_scored_up_to_twice_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertkit.extensions.generation.long_pairs.LEARNED", 200)
    words = ["compare", "translation", "--reverse", "6", "--out", str(tmp_path / "out")]
    words += [
        "--steps",
        "2",
        "--batch-size",
        "4",
        "--layers",
        "1",
        "--hidden",
        "16",
        "--seeds",
        "2",
    ]
    assert cli.run(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metric"] == "letters in place"
    assert result["settings"]["vocab_size"] == 56  # 26 letters with a space and without, and four
    assert (result["groups"][0]["low"], result["groups"][-1]["high"]) == (5, 12)
    dev = (tmp_path / "out" / "text" / "dev.target.txt").read_text(encoding="utf-8").split("\n")
    written = (tmp_path / "out" / "lstm" / "seed-1.txt").read_text(encoding="utf-8").split("\n")
    hits = [
        letter == text.split()[n] if n < len(text.split()) else False
        for text, right in zip(written, dev, strict=True)
        for n, letter in enumerate(right.split())
    ]
    score = result["scores"][LSTM]["letters in place"]
    assert score["each"][1] == pytest.approx(sum(hits) / len(hits))
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert "±" in page
    assert "letters in the source" in page
    assert "words in the source" not in page


def test_captions_are_joined_in_both_parts(place: Path, tmp_path: Path) -> None:
    settings = CompareTranslation(**(vars_of(TINY) | {"join": 3}))
    result = compare_translation(**files(place), out=tmp_path / "out", settings=settings)
    assert result["pairs"] == {"train": 101, "dev": 30}


def vars_of(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"dev_source": None}, {}, "give dev_source= and dev_target=, or dev_file="),
        ({"target": None}, {}, "give source= and target=, or file="),
        ({"source_column": "a"}, {}, "source_column=, target_column: go with file="),
        ({"reverse": 9}, {}, "reverse: draws letters; leave out files"),
        ({"dev_target": "train.en.txt"}, {}, "train.en.txt:61: .* ends before this line"),
        ({"dev_target": "empty.txt"}, {}, "empty.txt:3: empty"),
        ({"target": "none.txt"}, {}, "none.txt: no such file"),
        ({}, {"vocab_size": 4000}, "size = 4000: no vocabulary of the texts has it"),
        ({}, {"length": 2}, "length: expected `int` >= 8"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_left(
    changes: dict[str, Any], settings: dict[str, Any], message: str, place: Path, tmp_path: Path
) -> None:
    lines = (place / "dev.en.txt").read_text(encoding="utf-8").split("\n")
    lines[2] = " "
    (place / "empty.txt").write_text("\n".join(lines), encoding="utf-8")
    given = files(place) | {
        key: place / value if str(value).endswith(".txt") else value
        for key, value in changes.items()
    }
    with pytest.raises(BertkitError, match=message):
        compare_translation(
            **given,
            out=tmp_path / "out",
            settings=CompareTranslation(**(vars_of(TINY) | settings)),
        )
    assert not (tmp_path / "out").exists()


def test_words_in_place_are_counted_by_reference() -> None:
    assert recipe.words_in_place(["a b c", "x"], ["a b c", "x"]) == 1.0
    assert recipe.words_in_place(["a b c d", "b a"], ["a b", "a b"]) == 0.5
    assert recipe.words_in_place(["", "a"], ["a b c", "a"]) == 0.25
