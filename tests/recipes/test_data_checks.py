"""Warnings about data and predictions, with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertkit.data.multiple_choice import ChoiceQuestion
from bertkit.data.question_answering import Question
from bertkit.data.tagged_text import TaggedText
from bertkit.extensions.generation.tasks.dpo import Dpo
from bertkit.recipes.data_checks import (
    check_answers,
    check_rows,
    show_calibration,
    show_labels,
    unlearned,
)
from bertkit.tasks.answer import Answer, QuestionAnswer
from bertkit.tasks.choose import Choose
from bertkit.tasks.classify import Classify
from bertkit.tasks.confusion import label_report
from bertkit.tasks.examples import Examples, read_examples
from bertkit.tasks.labeled_text import ClassifyOptions, LabelExample
from bertkit.tasks.respond import Respond
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.similarity import SimilarityExample as Pair
from bertkit.tasks.tag import Tag

LABELS = ("doing", "thing")


def examples(*rows: tuple[str, str], name: str = "train") -> Examples:
    read = [
        LabelExample(text, None, label, f"{name}.tsv:{line}")
        for line, (text, label) in enumerate(rows, 1)
    ]
    return Examples(read, f"{name}.tsv", "")


def labeled(*labels: str) -> list[Any]:
    return [*examples(*((f"text {i}", label) for i, label in enumerate(labels))).examples]


def tagged(*tags: str) -> list[Any]:
    return [TaggedText("a", [(0, 1)], [tag]) for tag in tags]


def pairs(*labels: float | None) -> list[Any]:
    return [Pair((f"a {i}", f"b {i}"), label) for i, label in enumerate(labels)]


def questions(*answers: str | None) -> list[Any]:
    return [Question("who", "a b", ((text, 2),) if text else ()) for text in answers]


def warnings_in(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.split("\n") if line.startswith("warning: ")]


def test_training_examples_in_dev_or_test_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    train = examples(("a", "doing"), ("b", "thing"), ("c", "doing"), ("d", "thing"))
    dev = examples(("x", "doing"), ("b", "thing"), ("c", "thing"), name="dev")
    test = examples(("x", "doing"), ("a", "doing"), ("new", "thing"), name="test")
    check_rows(Classify(LABELS, ClassifyOptions()), {"train": train, "dev": dev, "test": test})
    assert warnings_in(capsys) == [
        "warning: dev: 2 of 3 examples are also in train (first: dev.tsv:2), so its scores are too "
        "high; remove them from dev or train",
        "warning: test: 1 of 3 examples are also in train (first: test.tsv:2), so its scores are "
        "too high; remove them from test or train",
        "warning: test: 1 of 3 examples are also in dev (first: test.tsv:1), so its scores are too "
        "high; remove them from test or dev",
    ]
    check_rows(
        Classify(LABELS, ClassifyOptions()), {"train": train, "dev": examples(("y", "doing"))}
    )
    assert warnings_in(capsys) == []
    check_rows(Classify(LABELS, ClassifyOptions()), {"train": train, "dev": train})
    assert warnings_in(capsys) == [
        "warning: dev: all 4 examples are also in train, so its scores do not show how well the "
        "model generalizes; use other examples, or hold out a part of train (--dev 0.1)"
    ]


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ("1.5 2 3", ClassifyOptions(), "the task is regression"),
        ("1.5 2 3", ClassifyOptions(regression=True), ""),
        ("1.5 2 3", ClassifyOptions(regression=False), ""),
        ("1 2 3", ClassifyOptions(), "used as 3 unordered classes"),
        ("1.0 2.0 3.0", ClassifyOptions(), "used as 3 unordered classes"),
        ("1 2 3", ClassifyOptions(regression=False), ""),
        ("0 1 1", ClassifyOptions(), ""),
        ("a 2 3", ClassifyOptions(), ""),
        ("[1] [2] [3]", ClassifyOptions(), ""),
    ],
)
def test_interpretation_of_numeric_labels_is_reported(
    labels: str, options: ClassifyOptions, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train = examples(*((f"text {label}", label) for label in labels.split()))
    check_rows(Classify.from_examples(train.examples, options), {"train": train}, options)
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("labels: ") == bool(message)


def test_tagged_training_texts_in_dev_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("Ada B-PER\nsaw O\n\nBob B-PER\nran O\n", encoding="utf-8")
    rows = Examples(read_examples(Tag, tmp_path / "a.txt"), "a.txt", "")
    check_rows(Tag.from_examples(rows.examples, Tag.Options()), {"train": rows, "dev": rows})
    assert len(warnings_in(capsys)) == 1


@pytest.mark.parametrize(
    "labels",
    [
        ("Good", "good", "good "),
        ("01", "1", "1.0"),
        ("caf\u00e9", "cafe\u0301"),
        ("A", "\uff21"),
        ("pos", "pos\u200b", "\ufeffpos"),
    ],
)
def test_labels_that_look_alike_are_reported(
    labels: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    task = Classify(("bad", *labels), ClassifyOptions())
    check_rows(task, {"train": examples(("a", labels[0]), ("b", "bad"))})
    (line,) = warnings_in(capsys)
    assert f"the labels {' and '.join(map(repr, labels))} differ only in case" in line


def test_labels_of_one_example_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    frequent = ["good", "bad"] * 10
    for label, warns in (("godo", True), ("good", False)):
        rows = [(f"text {i}", name) for i, name in enumerate([*frequent, label])]
        train = examples(*rows)
        check_rows(Classify.from_examples(train.examples, ClassifyOptions()), {"train": train})
        expected = "train: labels of only one example: 'godo' (train.tsv:21);"
        assert [expected in line for line in warnings_in(capsys)] == [True] * warns
    tags = Examples([*tagged(*["B-PER"] * 10), *tagged("B-PRE")], "a.txt", "")
    task = Tag.from_examples(tags.examples, Tag.Options())
    check_rows(task, {"train": tags})
    assert "only one example: 'PRE' (a text);" in warnings_in(capsys)[0]
    numbers = examples(*((f"text {i}", str(i / 7)) for i in range(20)))
    regression = Classify.from_examples(numbers.examples, ClassifyOptions())
    check_rows(regression, {"train": numbers})
    assert warnings_in(capsys) == []


def test_constant_predictions_are_reported_with_remedies(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"learning_rate": 5e-5, "epochs": 3}
    constant = label_report([("doing", "doing")] * 8 + [("thing", "doing")] * 2, LABELS)
    check_answers(constant, "dev", settings=settings, steps=12)
    (line,) = warnings_in(capsys)
    assert "dev: all predictions are 'doing', the label of 80% of the examples" in line
    for remedy in ("learning_rate (5e-05 was used", "epochs (3 were used)", "12 steps", "balanced"):
        assert remedy in line
    even = label_report([("doing", "doing"), ("thing", "doing")], LABELS)
    check_answers(even, "dev", settings=settings, steps=1000)
    (line,) = warnings_in(capsys)
    assert "balanced" not in line
    assert "steps" not in line
    check_answers(even, "rows.tsv")
    assert "differ from its training data" in warnings_in(capsys)[0]
    check_answers(label_report([("a", None), ("b", None)], ("a", "b")), "dev", settings=settings)
    assert "no label is predicted" in warnings_in(capsys)[0]


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (5e-5, "Increase learning_rate (5e-05 was used; small models need 1e-4 to 3e-4) or epochs"),
        (1e-4, "Increase learning_rate (0.0001 was used; small models need 1e-4 to 3e-4) or"),
        (3e-4, "Increase epochs (3 were used); learning_rate is already high"),
        (3e-3, "Reduce learning_rate (0.003 was used; 2e-5 to 3e-4 is usual) or increase epochs"),
    ],
)
def test_constant_predictions_suggest_a_learning_rate(
    rate: float, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    even = label_report([("doing", "doing"), ("thing", "doing")], LABELS)
    check_answers(even, "dev", settings={"learning_rate": rate, "epochs": 3})
    assert f"separate the labels. {message}" in warnings_in(capsys)[0]


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (5e-4, "Increase learning_rate (0.0005 was used; small models need 1e-3 to 3e-3) or"),
        (3e-3, "Increase epochs (3 were used); learning_rate is already high"),
        (3e-2, "Reduce learning_rate (0.03 was used; 2e-4 to 3e-3 is usual) or increase"),
    ],
)
def test_adapters_need_ten_times_the_learning_rate(
    rate: float, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    even = label_report([("doing", "doing"), ("thing", "doing")], LABELS)
    settings = {"learning_rate": rate, "epochs": 3}
    check_answers(even, "dev", settings=settings, factor=10.0)
    assert f"separate the labels. {message}" in warnings_in(capsys)[0]


CHANCE: list[tuple[Any, list[Any], dict[str, float], float]] = [
    (Classify(("a", "b"), ClassifyOptions()), labeled("a", "b"),
     {"accuracy": 0.5, "matthews": -0.1}, 0.1),
    (Classify(("a", "b"), ClassifyOptions(multi_label=True)), labeled('["a"]', '["b"]'),
     {"best_f1_micro": 2 / 3}, 0.7),
    (Classify(("score",), ClassifyOptions(regression=True)), labeled("1.5", "2"), {"pearson": 0.0},
     0.1),
    (Tag(("O", "B-A"), Tag.Options(scheme="iob2")), tagged("B-A", "O"), {"f1": 0.0}, 0.1),
    (Tag(("N", "V"), Tag.Options(scheme="none")), tagged("N", "N", "V"), {"accuracy": 2 / 3}, 0.9),
    (Choose(), [ChoiceQuestion("a", ("b", "c"), 0)], {"accuracy": 0.5}, 1.0),
    (Respond(), [ChoiceQuestion("a", ("b", "c"), 0)], {"mrr": 0.75}, 1.0),
    (Similarity(), pairs(None, None), {"mrr": 0.75}, 1.0),
    (Similarity((), Similarity.Options(loss="cosine")), pairs(1.0, 2.0), {"spearman": 0.0}, 0.1),
    (Answer(), questions("b", None), {"best_f1": 0.5}, 0.6),
    (Dpo(), [None], {"accuracy": 0.5}, 0.6),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "examples", "scores", "better"),
    CHANCE,
    ids=[f"{task.name}-{next(iter(scores))}" for task, _, scores, _ in CHANCE],
)
def test_unlearned_describes_scores_at_chance(
    task: Any, examples: list[Any], scores: dict[str, float], better: float
) -> None:
    name = [*scores][-1]
    assert name.removeprefix("best_") in str(unlearned(task, scores, examples))
    assert unlearned(task, scores | {name: -0.5}, examples)
    assert unlearned(task, scores | {name: better}, examples) is None


def test_unlearned_ignores_rows_with_one_label() -> None:
    rows: list[tuple[Any, list[Any], dict[str, float]]] = [
        (
            Classify(("a", "b"), ClassifyOptions()),
            labeled("a", "a"),
            {"accuracy": 1.0, "matthews": 0.0},
        ),
        (Tag(("N", "V"), Tag.Options(scheme="none")), tagged("N", "N"), {"accuracy": 1.0}),
        (Answer(), questions(None, None), {"f1": 1.0}),
    ]
    for task, examples, scores in rows:
        assert unlearned(task, scores, examples) is None


def test_unanswered_questions_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    rows = questions("b", None)
    no_answer = QuestionAnswer("", 0, 0, 0.9, [], 1.0)
    description = unlearned(Answer(), {"f1": 0.5}, rows, [no_answer, no_answer])
    assert description == "all 2 predictions are '(no answer)'"
    check_answers(
        None, "dev", unlearned=description, settings={"learning_rate": 5e-5, "epochs": 3}, steps=9
    )
    (line,) = warnings_in(capsys)
    assert line.startswith(
        f"warning: dev: {description}; the model has not learned the task. Increase"
    )
    assert "9 steps" in line
    found = QuestionAnswer("b", 0, 1, 0.9, [], 1.0)
    assert "f1 0.5000" in str(unlearned(Answer(), {"f1": 0.5}, rows, [no_answer, found]))
    assert unlearned(Answer(), {"f1": 0.7}, rows, [no_answer, found]) is None


def test_model_that_separates_labels_gets_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    check_answers(label_report([("doing", "doing"), ("thing", "thing")], LABELS), "dev")
    check_answers(None, "dev")
    show_labels(None, "dev")
    show_calibration({}, "dev")
    assert capsys.readouterr().err == ""
