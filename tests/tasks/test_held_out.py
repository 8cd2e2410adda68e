"""Tests of splitting held-out rows from the training rows."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from bertkit.data.multiple_choice import ChoiceQuestion
from bertkit.data.question_answering import Question
from bertkit.errors import ConfigError, DataError
from bertkit.tasks.answer import Answer
from bertkit.tasks.choose import Choose
from bertkit.tasks.classify import Classify
from bertkit.tasks.held_out import hold_out, take_rows
from bertkit.tasks.labeled_text import LabelExample
from bertkit.tasks.respond import Respond
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.similarity import SimilarityExample as Scored
from bertkit.tasks.task import Reading


def rows(**counts: int) -> list[LabelExample]:
    return [
        LabelExample(f"{label} {i}", None, label, f"f:{i + 1}")
        for label, count in counts.items()
        for i in range(count)
    ]


def split(given: list[Any], share: float, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    kind = Classify if isinstance(given[0], LabelExample) else Answer
    made = kind.Options(**options)
    return hold_out(kind, given, share, name="dev", options=made, seed=seed)  # type: ignore[arg-type]


def test_split_is_stratified_and_deterministic() -> None:
    given = rows(a=100, b=50, c=10)
    train, dev = split(given, 0.1)
    assert Counter(row.label for row in dev) == {"a": 10, "b": 5, "c": 1}
    assert sorted(map(repr, [*train, *dev])) == sorted(map(repr, given))
    assert split(given, 0.1) == (train, dev)
    assert split(given, 0.1, seed=1)[1] != dev  # control
    indices = [given.index(row) for row in dev]
    assert indices == sorted(indices)


def test_split_stratifies_regression_labels() -> None:
    given = [LabelExample(str(i), None, f"{i / 10}", f"f:{i}") for i in range(1, 101)]
    _, dev = split(given, 0.1)
    assert sorted(int(float(row.label) - 0.05) for row in dev) == list(range(10))


def test_single_row_of_label_stays_in_train() -> None:
    for seed in range(20):
        train, dev = split(rows(a=10, b=10, c=1, d=1), 0.5, seed)
        assert {"c", "d"} <= {row.label for row in train}
        assert {row.label for row in dev} == {"a", "b"}


def test_rows_with_equal_text_stay_together() -> None:
    given = rows(a=20, b=20) * 2
    train, dev = split(given, 0.3)
    assert not {row.text for row in train} & {row.text for row in dev}
    assert len(dev) == 24
    pairs = [LabelExample(f"q{i // 5}", f"a{i}", "yn"[i % 5 > 0], f"f:{i}") for i in range(100)]
    train, dev = split(pairs, 0.2)
    assert not {row.text for row in train} & {row.text for row in dev}
    assert len(dev) == 20
    scored = [Scored((f"q{i // 5}", f"a{i}"), i / 100, f"f:{i}") for i in range(100)]
    train, dev = hold_out(Similarity, scored, 0.2, name="dev", options=Similarity.Options(), seed=0)
    assert not {row.texts[0] for row in train} & {row.texts[0] for row in dev}
    questions = [
        Question(f"q{i}", f"context {i // 4}", (("context", 0),), where=f"f:{i}") for i in range(40)
    ]
    train, dev = split(questions, 0.2)
    assert not {q.context for q in train} & {q.context for q in dev}
    assert len(dev) == 8


def test_questions_and_turns_of_one_source_stay_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = [
        ChoiceQuestion(f"text {i // 4}", ("a", "b"), 0, f"question {i}", f"f:{i}")
        for i in range(40)
    ]
    train, dev = hold_out(Choose, choices, 0.2, name="dev", options=Choose.Options(), seed=0)
    assert not {q.text for q in train} & {q.text for q in dev}
    assert len(dev) == 8
    instructed = [
        dataclasses.replace(q, text="Choose.") for q in choices
    ]  # an instruction instead of a text
    train, dev = hold_out(Choose, instructed, 0.2, name="dev", options=Choose.Options(), seed=0)
    assert (len(train), len(dev)) == (32, 8)
    assert "dev: 40 of 40 rows have the same text; both splits" in capsys.readouterr().err
    few = [Question(f"q{i}", f"{i // 25}", (("0", 0),), where=f"f:{i}") for i in range(200)]
    train, dev = split(few, 0.1)
    assert not {q.context for q in train} & {q.context for q in dev}
    assert len(dev) == 25
    assert capsys.readouterr().err == ""
    talks = [{"dialogue": [[f"hello {n}", f"turn {n}.{p}"] for p in range(4)]} for n in range(20)]
    (tmp_path / "talks.json").write_text(json.dumps(talks), encoding="utf-8")
    read, _ = Respond.reader.read(tmp_path / "talks.json", Reading(), labeled=True)
    train, dev = hold_out(Respond, read, 0.2, name="dev", options=Respond.Options(), seed=0)
    assert len(dev) == 16
    right = {row.choices[row.answer] for row in dev if row.answer is not None}
    assert not right & {turn for row in train for turn in row.text.splitlines()}


def test_multilabel_option_changes_stratification() -> None:
    given = [LabelExample(f"t{i}", None, "a|b" if i % 2 else "a", f"f:{i}") for i in range(20)]
    given.append(LabelExample("both", None, "b|a", "f:99"))
    dev_splits = [split(given, 0.5, seed, multi_label=True)[1] for seed in range(10)]
    assert any(row.text == "both" for dev in dev_splits for row in dev)
    single_label_splits = [
        split(given, 0.5, seed)[1] for seed in range(10)
    ]  # "b|a" is a separate label
    assert not any(row.text == "both" for dev in single_label_splits for row in dev)


def take(dev: Any, test: Any = None, count: int = 20) -> Any:
    given = rows(a=count, b=count)
    taken = take_rows(Classify, given, dev, test, None, options=Classify.Options(), seed=3)
    return taken.values()


def test_number_is_parsed_as_fraction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev = take(Path("0.25"))
    assert (len(train.examples), len(dev.examples)) == (30, 10)
    assert dev.record["held_out"] == {"share": 0.25, "seed": 3, "from": "train"}
    assert "dev: 10 of 40 rows of train, held out (seed 3)" in capsys.readouterr().err
    assert [*take(0.25)][1].examples == dev.examples
    monkeypatch.chdir(tmp_path)
    Path("0.25").mkdir()  # an existing path is not parsed as a number
    with pytest.raises(DataError, match="expected a file, got a directory"):
        take("0.25")


def test_dev_and_test_are_fractions_of_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    train, dev, test = take(0.25, 0.1)
    assert [len(part.examples) for part in (train, dev, test)] == [26, 10, 4]
    all_rows = [*map(repr, [*train.examples, *dev.examples, *test.examples])]
    assert sorted(all_rows) == sorted(map(repr, rows(a=20, b=20)))
    assert dev.examples == [*take(0.25)][1].examples  # dev is the same with test and without
    assert Counter(row.label for row in dev.examples) == {"a": 5, "b": 5}
    assert Counter(row.label for row in test.examples) == {"a": 2, "b": 2}
    assert "test: 4 of 40 rows of train, held out (seed 3)" in capsys.readouterr().err
    assert test.record["held_out"] == {"share": 0.1, "seed": 3, "from": "train"}
    assert train.record["held_out"] == {
        "share": 0.35,
        "seed": 3,
        "from": "this file, without dev and test",
    }


def test_dev_is_required_and_accepts_numpy_floats() -> None:
    given, own = rows(a=20, b=20), Classify.Options()
    with pytest.raises(ConfigError, match="dev: required; pass rows, or the fraction of train"):
        take_rows(Classify, given, None, None, None, options=own, seed=0)  # type: ignore[arg-type]
    for share in (0.25, np.float32(0.25)):
        taken = take_rows(Classify, given, share, None, None, options=own, seed=0)  # type: ignore[arg-type]
        assert len(taken["dev"].examples) == 10


@hypothesis.given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    shares=st.tuples(st.floats(0.05, 0.45), st.floats(0.05, 0.45)),
    seed=st.integers(0, 9),
)
def test_splits_are_disjoint_and_train_keeps_every_label(
    counts: list[int], shares: tuple[float, float], seed: int
) -> None:
    given = rows(**dict(zip("abcde", counts, strict=False)))
    try:
        taken = take_rows(
            Classify, given, *shares, None, options=Classify.Options(), seed=seed
        ).values()
    except DataError:  # too few rows for the fraction
        hypothesis.reject()
    together = [row for part in taken for row in part.examples]
    assert sorted(map(repr, together)) == sorted(map(repr, given))
    train = next(iter(taken)).examples
    assert {row.label for row in train} == {row.label for row in given}


def test_only_test_can_be_a_fraction() -> None:
    given, dev = rows(a=20, b=20), rows(a=3, b=3)
    taken = take_rows(Classify, given, dev, "0.1", None, options=Classify.Options(), seed=3)
    sizes = {name: len(part.examples) for name, part in taken.items()}
    assert sizes == {"train": 36, "dev": 6, "test": 4}


@pytest.mark.parametrize("share", ["0", "1.5", 2, -0.1, "nan"])
def test_invalid_fractions_are_rejected(share: Any) -> None:
    for name, shares in {"dev": (share,), "test": (0.1, share)}.items():
        with pytest.raises(ConfigError, match=f"{name}: must be a file or a fraction"):
            take(*shares)


def test_fractions_without_rows_are_rejected() -> None:
    with pytest.raises(DataError, match=r"dev: 0\.01 of 4 rows holds out no row"):
        take(0.01, count=2)
    with pytest.raises(DataError, match=r"test: 0\.01 of 4 rows holds out no row"):
        take(0.5, 0.01, count=2)
    with pytest.raises(DataError, match=r"dev: the fraction leaves no rows for train"):
        take(0.99, count=2)
    with pytest.raises(ConfigError, match=r"fractions of 0\.5 and 0\.5 leave no rows for train"):
        take(0.5, 0.5)
