"""Ways to classify: each learns what is easy, none what is not there, twice the same."""

from __future__ import annotations

import html
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import tiny_elmo, tiny_folder

from bertkit.checkpoint.directory import load
from bertkit.errors import BertkitError, CheckpointError, ConfigError, DataError
from bertkit.extensions.classic.compare import (
    ELMO,
    GPT,
    LSTM,
    PRETRAINED,
    RANDOM,
    REASONS,
    VECTORS,
    Compare,
    compare,
)
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.text.vocabulary_training import train as train_tokenizer

QUICK = Compare(
    seeds=1,
    batch_size=8,
    precision="fp32",
    epochs=1,
    random_epochs=1,
    vector_epochs=1,
    gpt_epochs=1,
    lstm_epochs=1,
)
EASY = Compare(
    seeds=2,
    batch_size=8,
    precision="fp32",
    epochs=8,
    learning_rate=1e-2,
    random_epochs=8,
    random_learning_rate=1e-2,
    vector_epochs=6,
    vector_learning_rate=1e-2,
    gpt_epochs=8,
    gpt_learning_rate=1e-2,
    lstm_epochs=8,
    lstm_learning_rate=3e-2,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("base") / "model"
    return tiny_folder(folder, tokenizer, "mlm", hidden=32, intermediate=64, dropout=0.0)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["the", "class", "loop", "statement", "name"]
    table = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    Vectors(words, table).save(path)
    return path


def tsv(path: Path, count: int, *, shuffled: bool = False) -> Path:
    """Texts that speak of a class, or else of a loop; half of their words have vectors."""
    chance = random.Random(path.name)
    lines = ["text\tlabel\n"]
    for i in range(count):
        word, label = ("class", "thing") if i % 2 else ("loop", "doing")
        if shuffled:
            label = chance.choice(("thing", "doing"))
        lines.append(f"the {word} number {i}\t{label}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_each_way_learns_what_is_easy(base: Path, vectors: Path, tmp_path: Path) -> None:
    train, dev = tsv(tmp_path / "train.tsv", 48), tsv(tmp_path / "dev.tsv", 20)
    out = tmp_path / "out"
    found = compare(base, train=train, dev=dev, vectors=vectors, out=out, settings=EASY)
    assert list(found["scores"]) == [RANDOM, VECTORS, PRETRAINED]
    for scores in found["scores"].values():
        assert scores["accuracy"]["mean"] > 0.9  # half are right by chance
        assert len(scores["accuracy"]["each"]) == 2
    assert found["vectors"]["coverage"] == {"train": 0.5, "dev": 0.5}
    assert json.loads((out / "compare.json").read_text(encoding="utf-8")) == found
    page = (out / "compare.html").read_text(encoding="utf-8")
    assert "50.0%" in page
    assert page.count("<svg") == 1
    for way in (RANDOM, VECTORS, PRETRAINED):
        assert f'<th scope="row">{way}</th>' in page
    assert load(out / "pretrained" / "seed-1").labels == ("doing", "thing")


def test_what_is_scored_is_test_and_what_chooses_is_dev(
    base: Path, vectors: Path, others: dict[str, Path], tmp_path: Path
) -> None:
    """Labels of test are turned around: a way that is right about dev is wrong about all of it."""
    train, dev, test = (tsv(tmp_path / f"{n}.tsv", n) for n in (48, 20, 16))
    turned = {"thing": "doing", "doing": "thing", "label": "label"}
    rows = [line.split("\t") for line in test.read_text(encoding="utf-8").splitlines()]
    test.write_text("".join(f"{text}\t{turned[label]}\n" for text, label in rows), "utf-8")
    out = tmp_path / "out"
    found = compare(
        base, train=train, dev=dev, test=test, vectors=vectors, elmo=others["elmo"], out=out,
        settings=EASY,
    )  # fmt: skip
    for way, scores in found["scores"].items():
        assert scores["accuracy"]["mean"] < 0.1, way
    page = html.unescape((out / "compare.html").read_text(encoding="utf-8"))
    assert f"16 of {test} to score on." in " ".join(page.split())
    unknown = tmp_path / "unknown.tsv"
    unknown.write_text("text\tlabel\nthe cat\tneither\n", encoding="utf-8")
    with pytest.raises(DataError, match="neither"):
        compare(base, train=train, dev=dev, test=unknown, out=tmp_path / "more", settings=EASY)
    assert not (tmp_path / "more").exists()


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("others")
    tokenizer = train_tokenizer(english[:5], kind="bpe", size=300, use="write")
    shape: dict[str, Any] = {"hidden": 32, "intermediate": 64, "dropout": 0.0}
    found = {
        name: tiny_folder(place / name, tokenizer, "lm", family=family, **shape)
        for name, family in (("gpt", GPT2), ("lstm", LSTM_LM))
    }
    return {**found, "elmo": tiny_elmo(place / "elmo")}


def test_every_way_learns_what_is_easy(
    base: Path, vectors: Path, others: dict[str, Path], tmp_path: Path
) -> None:
    """All that may be given, in the order of the story; each with its reason on the page."""
    train, dev, test = (tsv(tmp_path / f"{n}.tsv", n) for n in (48, 20, 16))
    out = tmp_path / "out"
    found = compare(
        base, train=train, dev=dev, test=test, vectors=vectors, out=out, settings=EASY, **others
    )
    assert found["test"] == {"file": str(test), "rows": 16}
    assert list(found["scores"]) == [RANDOM, VECTORS, LSTM, ELMO, GPT, PRETRAINED] == list(REASONS)
    for way, scores in found["scores"].items():
        assert scores["accuracy"]["mean"] > 0.9, way  # half are right by chance
        assert len(scores["accuracy"]["each"]) == 2
    assert json.loads((out / "compare.json").read_text(encoding="utf-8")) == found
    page = html.unescape((out / "compare.html").read_text(encoding="utf-8"))
    svg = (out / "compare.svg").read_text(encoding="utf-8")
    for way, (reason, source) in REASONS.items():
        assert reason in page
        assert source in page
        assert way in svg
    assert (found["gpt"], found["lstm"]) == (str(others["gpt"]), str(others["lstm"]))
    mixture = found["elmo"]["mixture"]
    assert [*mixture] == ["embeddings", "1", "2", "scale"]
    assert sum(mixture[layer]["mean"] for layer in ("embeddings", "1", "2")) == pytest.approx(1.0)
    assert mixture["scale"]["mean"] != 1.0  # it has learned
    for folder in ("gpt-fine-tuned", "lstm-fine-tuned"):
        assert load(out / folder / "seed-1").labels == ("doing", "thing")


def test_what_is_not_given_is_left_out(base: Path, others: dict[str, Path], tmp_path: Path) -> None:
    train = tsv(tmp_path / "train.tsv", 8)
    out, asked = tmp_path / "out", {"train": train, "dev": train, "settings": QUICK}
    found = compare(base, out=out, elmo=others["elmo"], **asked)  # type: ignore[arg-type]
    assert list(found["scores"]) == [RANDOM, ELMO, PRETRAINED]
    assert not {"vectors", "gpt", "lstm"} & {*found}
    page = html.unescape((out / "compare.html").read_text(encoding="utf-8"))
    assert [way for way, (reason, _) in REASONS.items() if reason in page] == list(found["scores"])


def test_the_same_settings_give_the_same_scores(base: Path, vectors: Path, tmp_path: Path) -> None:
    words = ("class", "loop", "name", "statement")
    train = tmp_path / "train.tsv"
    train.write_text(
        "text\tlabel\n" + "".join(f"the {words[i % 4]} {i}\t{i / 4}\n" for i in range(16)),
        encoding="utf-8",
    )  # a correlation shows what an accuracy of few rows would hide
    settings = Compare(seeds=1, batch_size=8, epochs=2, random_epochs=2, vector_epochs=2)
    once, again = (
        compare(
            base, train=train, dev=train, vectors=vectors, out=tmp_path / name, settings=settings
        )
        for name in ("once", "again")
    )
    assert once == again
    pages = [(tmp_path / name / "compare.html").read_bytes() for name in ("once", "again")]
    assert pages[0] == pages[1]


def test_random_starts_have_the_models_shape_and_tokens_but_not_its_weights(
    base: Path, vectors: Path, tmp_path: Path
) -> None:
    train = tsv(tmp_path / "train.tsv", 8)
    compare(base, train=train, dev=train, vectors=vectors, out=tmp_path / "out", settings=QUICK)
    assert not (tmp_path / "out" / "random-start").exists()
    start, before = load(tmp_path / "out" / "random-weights" / "seed-0", heads=()), load(base)
    assert start.model.config == before.model.config
    assert start.tokenizer.pieces(range(300)) == before.tokenizer.pieces(range(300))
    ours, theirs = (x.model.encoder.embedding.tokens.weight for x in (start, before))
    assert (ours - theirs).abs().mean() > 0.01


def test_control_labels_by_chance_are_learned_by_none(
    base: Path, vectors: Path, tmp_path: Path
) -> None:
    train = tsv(tmp_path / "train.tsv", 48, shuffled=True)
    dev = tsv(tmp_path / "dev.tsv", 200, shuffled=True)
    found = compare(
        base, train=train, dev=dev, vectors=vectors, out=tmp_path / "out", settings=QUICK
    )
    for scores in found["scores"].values():
        assert scores["accuracy"]["mean"] < 0.65


PAIRS = "text\tpair\tlabel\nthe class\tthe class\tyes\nthe loop\tthe name\tno\n"
NUMBERS = "text\tlabel\nthe class\t0.5\nthe loop\t1.5\nthe name\t2.25\n"
SEVERAL = 'text\tlabel\nthe class\t["x", "y"]\nthe loop\t["y"]\nthe name\t[]\n'


@pytest.mark.parametrize(
    ("rows", "metric"),
    [(PAIRS, "accuracy"), (NUMBERS, "pearson"), (SEVERAL, "f1_micro")],
    ids=["pairs", "numbers", "several labels"],
)
def test_pairs_numbers_and_several_labels(
    rows: str,
    metric: str,
    base: Path,
    vectors: Path,
    others: dict[str, Path],
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(rows, encoding="utf-8")
    given = {"vectors": vectors, **others}
    found = compare(base, train=path, dev=path, out=tmp_path / "out", settings=QUICK, **given)
    assert found["metric"] == metric
    assert all(np.isfinite(scores[metric]["mean"]) for scores in found["scores"].values())


def test_refusals_leave_nothing_behind(
    base: Path, vectors: Path, others: dict[str, Path], tmp_path: Path
) -> None:
    train, out = tsv(tmp_path / "train.tsv", 8), tmp_path / "out"

    def refused(error: type[BertkitError], said: str, **other: object) -> None:
        given = {"train": train, "dev": train, "vectors": vectors, "settings": QUICK, **other}
        with pytest.raises(error, match=said):
            compare(base, out=out, **given)  # type: ignore[arg-type]
        assert not out.exists()

    foreign = tmp_path / "foreign.txt"
    Vectors(["et", "alia"], np.ones((2, 3), np.float32)).save(foreign)
    refused(DataError, "no vector of any word", vectors=foreign)
    refused(DataError, "no such file", vectors=tmp_path / "none.txt")
    refused(ConfigError, "longer than the model's 32", settings=Compare(length=64))
    other = tmp_path / "other.tsv"
    other.write_text("text\tlabel\nthe class\tthing\nthe loop\tidea\n")
    refused(DataError, r"other\.tsv:3: label 'idea' is not in the training file", dev=other)
    other.write_text("text\tpair\tlabel\nthe class\ta loop\tthing\n")
    refused(DataError, r"other\.tsv:2: .*pair", dev=other)
    refused(CheckpointError, "expected an ELMo, got a Transformer", elmo=base)
    refused(CheckpointError, "a bert model is no Transformer that reads from the left", gpt=base)
    lstm, gpt = others["lstm"], others["gpt"]
    refused(CheckpointError, "a lstm-lm model is no Transformer that reads .* gpt=", gpt=lstm)
    refused(CheckpointError, "a gpt2 model is no language model of LSTMs.* lstm= out", lstm=gpt)
    refused(ConfigError, "longer than the model's 32 tokens", settings=Compare(length=33), gpt=gpt)
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(ConfigError, match="exists already"):
        compare(base, train=train, dev=train, vectors=vectors, out=out)
