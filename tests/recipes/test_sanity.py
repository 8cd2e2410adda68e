"""What commonly goes wrong is told in a sentence with the remedy; where all is well, nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.recipes.sanity import (
    check_answers,
    check_rows,
    check_steps,
    show_calibration,
    show_labels,
)
from bertkit.tasks.classify import Classify, Example, Options
from bertkit.tasks.confusion import label_report
from bertkit.tasks.examples import Examples, read_examples
from bertkit.tasks.tag import Tag

LABELS = ("doing", "thing")


def examples(*rows: tuple[str, str], name: str = "train") -> Examples:
    read = [
        Example(text, None, label, f"{name}.tsv:{line}")
        for line, (text, label) in enumerate(rows, 1)
    ]
    return Examples(read, f"{name}.tsv", "")


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.split("\n") if line.startswith("warning: ")]


def test_rows_to_score_that_are_learned_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    train = examples(("a", "doing"), ("b", "thing"), ("c", "doing"), ("d", "thing"))
    dev = examples(("x", "doing"), ("b", "thing"), ("c", "thing"), name="dev")
    test = examples(("x", "doing"), ("a", "doing"), ("new", "thing"), name="test")
    check_rows(Classify(LABELS, Options()), {"train": train, "dev": dev, "test": test})
    assert said(capsys) == [
        "warning: dev: rows that are also in train: 2 of 3 (the first is dev.tsv:2); its scores "
        "are too high: remove them from one",
        "warning: test: rows that are also in train: 1 of 3 (the first is test.tsv:2); its scores "
        "are too high: remove them from one",
        "warning: test: rows that are also in dev: 1 of 3 (the first is test.tsv:1); its scores "
        "are too high: remove them from one",
    ]
    check_rows(Classify(LABELS, Options()), {"train": train, "dev": examples(("y", "doing"))})
    assert said(capsys) == []
    check_rows(Classify(LABELS, Options()), {"train": train, "dev": train})
    assert said(capsys) == [
        "warning: dev: all of its 4 rows are also in train: its scores say nothing of other texts; "
        "give other rows, or hold some of train out (--dev 0.1)"
    ]


@pytest.mark.parametrize(
    ("labels", "options", "told"),
    [
        ("1.5 2 3", Options(), "a number is learned (regression)"),
        ("1.5 2 3", Options(regression=True), ""),
        ("1.5 2 3", Options(regression=False), ""),
        ("1 2 3", Options(), "learned as 3 classes without an order"),
        ("1.0 2.0 3.0", Options(), "learned as 3 classes without an order"),
        ("1 2 3", Options(regression=False), ""),
        ("0 1 1", Options(), ""),
        ("a 2 3", Options(), ""),
        ("[1] [2] [3]", Options(), ""),
    ],
)
def test_what_numbers_are_learned_as_is_told(
    labels: str, options: Options, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train = examples(*((f"text {label}", label) for label in labels.split()))
    check_rows(Classify.from_examples(train.examples, options), {"train": train}, options)
    err = capsys.readouterr().err
    assert told in err
    assert err.startswith("labels: ") == bool(told)


def test_words_that_are_learned_are_told_of_tags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("Ada B-PER\nsaw O\n\nBob B-PER\nran O\n", encoding="utf-8")
    rows = Examples(read_examples(Tag, tmp_path / "a.txt"), "a.txt", "")
    check_rows(Tag.from_examples(rows.examples, Tag.Options()), {"train": rows, "dev": rows})
    assert len(said(capsys)) == 1


@pytest.mark.parametrize("rate", [5e-5, 1e-4])
def test_few_steps_are_told_before_they_are_taken(
    rate: float, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Classify(LABELS, Options())
    check_steps(task, 12, learning_rate=rate, batch_size=32)
    (line,) = said(capsys)
    assert line.startswith(
        "warning: steps in all: 12, and below 100 little is learned at learning_"
    )
    assert "raise it or give more epochs or lower batch_size (it is 32)" in line
    check_steps(task, 2, learning_rate=3e-4, batch_size=16)
    (line,) = said(capsys)
    assert line.endswith(
        "below 10 little is learned: give more epochs or lower batch_size (it is 16)"
    )
    check_steps(task, 100, learning_rate=5e-5, batch_size=32)
    check_steps(task, 12, learning_rate=3e-4, batch_size=32)
    contrastive = Classify(LABELS, Options(contrastive=True))
    check_steps(contrastive, 12, learning_rate=5e-5, batch_size=32)
    assert said(capsys) == []


def test_labels_that_differ_in_case_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    task = Classify(("Good", "bad", "good", "good "), Options())
    check_rows(task, {"train": examples(("a", "Good"), ("b", "bad"))})
    (line,) = said(capsys)
    assert "the labels 'Good' and 'good' and 'good ' differ only in case" in line


def test_a_header_that_was_read_as_a_row_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.tsv"
    rows = "".join(f"eine Zeile {i}\t{('gut', 'matt')[i % 2]}\n" for i in range(6))
    for first, told in (("ein Satz\tgut\n", False), ("der Satz\tWertung\n", True)):
        file.write_text(first + rows, encoding="utf-8")
        train = Examples(read_examples(Classify, file), str(file), "")
        task = Classify.from_examples(train.examples, Options())
        check_rows(task, {"train": train})
        lines = said(capsys)
        assert bool(lines) == told
    assert "train.tsv:1: no other row has the label 'Wertung'" in lines[0]


def test_one_answer_for_all_is_told_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"learning_rate": 5e-5, "epochs": 3}
    constant = label_report([("doing", "doing")] * 8 + [("thing", "doing")] * 2, LABELS)
    check_answers(constant, "dev", settings=settings, steps=12)
    (line,) = said(capsys)
    assert "dev: every answer is 'doing', the label expected in 80% of cases" in line
    for remedy in ("learning_rate (it was 5e-05", "epochs (there were 3)", "12 steps", "balanced"):
        assert remedy in line
    even = label_report([("doing", "doing"), ("thing", "doing")], LABELS)
    check_answers(even, "dev", settings=settings, steps=1000)
    (line,) = said(capsys)
    assert "balanced" not in line
    assert "steps" not in line
    check_answers(even, "rows.tsv")
    assert "unlike those it learned" in said(capsys)[0]
    check_answers(label_report([("a", None), ("b", None)], ("a", "b")), "dev", settings=settings)
    assert "no label is ever given" in said(capsys)[0]


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((5e-5,), "Raise learning_rate (it was 5e-05; small models want 1e-4 to 3e-4) or take"),
        ((1e-4,), "Raise learning_rate (it was 0.0001; small models want 1e-4 to 3e-4) or take"),
        ((1e-4, 3e-4), "Take more epochs (there were 3): learning_rate is as high"),
        ((1e-5, 5e-5), "Raise learning_rate (1e-05, 5e-05 were tried;"),
        ((1e-5, 3e-2), "Try a learning_rate between (1e-05, 0.03 were tried; small models want"),
        ((3e-3,), "Lower learning_rate (it was 0.003; 2e-5 to 3e-4 are usual) or take more epochs"),
    ],
)
def test_a_rate_is_to_be_raised_where_none_that_was_tried_is_high(
    rates: tuple[float, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    even = label_report([("doing", "doing"), ("thing", "doing")], LABELS)
    settings = {"learning_rate": rates[0], "epochs": 3}
    check_answers(even, "dev", settings=settings, rates=rates[1:])
    assert f"tell them apart. {told}" in said(capsys)[0]


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        (5e-4, "Raise learning_rate (it was 0.0005; small models want 1e-3 to 3e-3) or take"),
        (3e-3, "Take more epochs (there were 3): learning_rate is as high"),
        (3e-2, "Lower learning_rate (it was 0.03; 2e-4 to 3e-3 are usual) or take"),
    ],
)
def test_adapters_want_ten_times_the_rate(
    rate: float, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    even = label_report([("doing", "doing"), ("thing", "doing")], LABELS)
    settings = {"learning_rate": rate, "epochs": 3}
    check_answers(even, "dev", settings=settings, factor=10.0)
    assert f"tell them apart. {told}" in said(capsys)[0]
    task = Classify(LABELS, Options())
    check_steps(task, 12, learning_rate=1e-3, batch_size=32, factor=10.0)
    assert "0.001 (small models want 1e-3 to 3e-3): raise it" in said(capsys)[0]
    check_steps(task, 12, learning_rate=1e-3, batch_size=32)  # the control
    assert said(capsys) == []


def test_a_model_that_tells_labels_apart_gets_no_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_answers(label_report([("doing", "doing"), ("thing", "thing")], LABELS), "dev")
    check_answers(None, "dev")
    show_labels(None, "dev")
    show_calibration({}, "dev")
    assert capsys.readouterr().err == ""
