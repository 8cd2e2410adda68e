"""Tests of text classification: columns, label types, scores and calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from tests.factories import tiny_model
from torch import nn
from torch.nn import functional as F

from bertkit.batch import Batch, Packed
from bertkit.errors import CheckpointError, DataError
from bertkit.tasks.capabilities import compute_label_report
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions, LabelAnswer, LabelExample, LabelsAnswer
from bertkit.tasks.task import Feature, Reading, by_example, group
from bertkit.text.encoding import Encoding


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "rows.tsv"
    path.write_text("".join(line.replace("|", "\t") + "\n" for line in lines), encoding="utf-8")
    return path


def test_reader_reports_file_without_tabs(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("DESC How did it end ?\nHUM Who was it ?\n", encoding="utf-8")
    message = r"text_column= and .* \(only one column, because the first line contains no tab: DESC"
    with pytest.raises(DataError, match=message):
        Classify.reader.read(path, Reading(), labeled=True)
    reading = Reading(text_column="2", label_column="1", header=False)
    message = "no column '2'; set separator= if the rows have several columns"
    with pytest.raises(DataError, match=message):
        Classify.reader.read(path, reading, labeled=True)
    reading = structs.replace(reading, separator="space")
    found, _ = Classify.reader.read(path, reading, labeled=True)
    assert [(e.text, e.label) for e in found] == [
        ("How did it end ?", "DESC"),
        ("Who was it ?", "HUM"),
    ]


def test_reader_accepts_uneven_rows_with_named_columns(data_folder: Path) -> None:
    reading = Reading(text_column="6", pair_column="7", label_column="5", header=False)
    found, _ = Classify.reader.read(data_folder / "stsb" / "sts-dev.tsv", reading, labeled=True)
    assert len(found) == 1500


def test_examples_keep_their_line_number(tmp_path: Path) -> None:
    path = table(tmp_path, "text|label", "a| x ", "", "b|y")
    found, message = Classify.reader.read(path, Reading(), labeled=True)
    assert found == [
        LabelExample("a", None, "x", f"{path}:2"),
        LabelExample("b", None, "y", f"{path}:4"),
    ]
    assert "2 rows; text = 'text', label = 'label'" in message
    path = table(tmp_path, "text|label", "a|x", "b|")
    with pytest.raises(DataError, match=r"rows\.tsv:3: no label"):
        Classify.reader.read(path, Reading(), labeled=True)
    path = table(tmp_path, "text|text_b|label", "a|b|x", "b| |y")
    with pytest.raises(DataError, match=r"rows\.tsv:3: the text is empty"):
        Classify.reader.read(path, Reading(), labeled=True)


def labeled(*labels: str) -> list[LabelExample]:
    return [
        LabelExample("a", None, label, f"dev.tsv:{line}") for line, label in enumerate(labels, 2)
    ]


def build_task(*labels: str, **options: Any) -> Classify:
    return Classify.from_examples(labeled(*labels), ClassifyOptions(**options))


def test_labels_are_sorted_in_natural_order() -> None:
    assert build_task("10", "9", "2", "2").labels == ("2", "9", "10")
    assert build_task("no", "yes", "3", "10").labels == ("3", "10", "no", "yes")


def test_integral_floats_equal_integer_labels() -> None:
    # pandas writes integers of a column with missing values as floats.
    rows = labeled("1.0", "0.0", "1.0")
    task = Classify.from_examples(rows, ClassifyOptions(class_weights="balanced"))
    assert task.labels == ("0", "1")
    assert task.weights is not None
    assert task.weights.tolist() == [1.5, 0.75]
    dev = labeled("1", "0", "0.0")
    task.check([*rows, *dev])
    answers = [LabelAnswer(label, 0.9, {"0": 0.4, "1": 0.6}) for label in ("1", "0", "0")]
    assert task.score(answers, dev)["accuracy"] == 1.0
    assert [task.error_record(a, e).severity for a, e in zip(answers, dev, strict=True)] == [
        0.0
    ] * 3
    assert task.label_pairs(answers[2], dev[2]) == [("0", "0")]

    # Models of earlier versions have float labels.
    before = Classify(("0.0", "1.0"), ClassifyOptions())
    before.check(dev)
    assert before.labels_of(dev[0]) == ["1.0"]
    several = Classify.from_examples(labeled("1.0|2.0", "2.0"), ClassifyOptions(multi_label=True))
    assert (several.labels, several.target(labeled("2")[0])) == (("1", "2"), [0.0, 1.0])
    words = Classify.from_examples(labeled("1.0", "2.0", "none"), ClassifyOptions())
    assert words.labels == ("1.0", "2.0", "none")
    # Booleans are lower case in JSON Lines files and capitalized in files of pandas.
    truth = Classify.from_examples(labeled("true", "false"), ClassifyOptions())
    assert truth.labels_of(labeled("True")[0]) == ["true"]
    apart = Classify.from_examples(labeled("true", "True"), ClassifyOptions())
    assert apart.labels_of(labeled("True")[0]) == ["True"]
    halves = Classify.from_examples(labeled("1.0", "1.5"), ClassifyOptions(regression=False))
    halves.check(labeled("1", "1.0", "1.5"))
    assert Classify.from_examples(labeled("1.0", "2.0"), ClassifyOptions(regression=True)).target(
        labeled("2.0")[0]
    ) == pytest.approx(2.0)


def test_regression_is_inferred_from_labels() -> None:
    assert build_task("1.5", "2").options.regression
    assert not build_task("1", "2").options.regression
    assert not build_task("1.0", "2.0").options.regression
    assert not build_task("1.5", "high").options.regression
    assert not build_task("1.5", "nan").options.regression
    assert build_task("1", "2", regression=True).options.regression
    assert build_task("1.5", "2", regression=False).labels == ("1.5", "2")
    assert build_task("1.5", "2").labels == ("score",)


def test_multilabel_report_has_no_confusion_matrix() -> None:
    several = build_task('["a", "b"]', '["b"]')
    dev = labeled('["a"]', '["b", "a"]')
    right = [LabelsAnswer(several.labels_of(row), {"a": 0.9, "b": 0.9}) for row in dev]
    report = compute_label_report(several, right, dev)
    assert report is not None
    assert (report.labels["a"].f1, report.confusion) == (1.0, None)
    exclusive = build_task("a", "b")  # exclusive labels have a confusion matrix
    exclusive_report = compute_label_report(
        exclusive, [LabelAnswer("a", 0.9, {"a": 0.9, "b": 0.1})], labeled("a")
    )
    assert exclusive_report is not None
    assert exclusive_report.confusion is not None
    assert exclusive_report.confusion.counts == [[1]]


def test_multilabel_is_inferred_from_lists() -> None:
    lists = build_task('["a", "b"]', "[]", '["b"]')
    assert lists.options.multi_label
    assert lists.labels == ("a", "b")
    assert lists.target(labeled('["b"]')[0]) == [0.0, 1.0]
    bars = build_task("a|b", "c", "a", multi_label=True)
    assert bars.labels == ("a", "b", "c")
    assert bars.target(labeled("c | a")[0]) == [1.0, 0.0, 1.0]
    assert not build_task("a|b", "c").options.multi_label
    for wrong in ('["a"', '["a", ["b"]]', "[" * 100_000):
        with pytest.raises(DataError, match=r"dev\.tsv:2: expected a list such as"):
            lists.target(labeled(wrong)[0])


def test_task_rejects_invalid_labels() -> None:
    with pytest.raises(DataError, match="only one label, 'x'"):
        build_task("x", "x")
    with pytest.raises(DataError, match="no labels"):
        build_task("[]", "[]")
    with pytest.raises(DataError, match="regression cannot be combined with multi_label"):
        build_task("1", "2", regression=True, multi_label=True)
    task = build_task("fair", "good")
    assert task.target(labeled("good")[0]) == 1
    with pytest.raises(DataError, match=r"dev\.tsv:2: label 'god' is not .* did you mean 'good'"):
        task.check(labeled("god"))
    number = build_task("1.5", "2")
    assert number.target(labeled("1e-1")[0]) == 0.1
    for word in ("high", "nan", "inf"):
        with pytest.raises(DataError, match=r"dev\.tsv:2: label .* is not a number"):
            number.check(labeled(word))


def answered(task: Classify, rows: list[list[float]]) -> list[Any]:
    encoding = Encoding(*[np.zeros(3, dtype=np.int64)] * 3, [None] * 3, [None] * 3, False)
    features = [Feature(encoding, index) for index in range(len(rows))]
    outputs = [np.array([row], dtype=np.float32) for row in rows]
    return task.answers(
        by_example(labeled(*["x"] * len(rows)), group(features), outputs), nn.Identity()
    )


def test_scores_match_task_type() -> None:
    task = build_task("no", "yes")
    answers = answered(task, [[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [0.0, 1.0]])
    scores = task.score(answers, labeled("no", "yes", "yes", "yes"))
    assert scores["accuracy"] == 0.75
    assert scores["f1"] == pytest.approx(0.8)  # precision 1, recall 2/3
    assert scores["matthews"] == pytest.approx((1 * 2 - 0 * 1) / (2 * 2 * 1 * 3) ** 0.5)
    number = build_task("1.5", "2")
    scores = number.score(answered(number, [[1.0], [2.0], [3.0]]), labeled("2", "4", "6"))
    assert scores == pytest.approx({"pearson": 1.0, "spearman": 1.0})
    several = build_task('["a", "b"]', '["b"]')
    answers = answered(several, [[2.0, 1.0], [-1.0, 3.0], [-1.0, -1.0]])
    assert [answer.labels for answer in answers] == [["a", "b"], ["b"], []]
    scores = several.score(answers, labeled('["a", "b"]', '["a"]', "[]"))
    assert scores["exact"] == pytest.approx(2 / 3)
    assert [task.metric for task in (task, number, several)] == ["accuracy", "pearson", "f1_micro"]


def test_error_severity_grows_with_error() -> None:
    task = build_task("no", "yes")
    good, sure, unsure = answered(task, [[0.0, 1.0], [4.0, 0.0], [0.5, 0.0]])
    bad = [
        task.error_record(a, e).severity
        for a, e in zip([good, sure, unsure], labeled(*["yes"] * 3), strict=True)
    ]
    assert bad[0] == 0.0
    assert bad[1] > bad[2] > 0.0
    number = build_task("1.5", "2")
    assert number.error_record(answered(number, [[1.0]])[0], labeled("4")[0]).severity == 3.0
    several = build_task('["a", "b"]', '["b"]')
    assert (
        several.error_record(answered(several, [[2.0, 1.0]])[0], labeled('["a", "b"]')[0]).severity
        == 0
    )


def test_balanced_class_weights_match_weighted_cross_entropy() -> None:
    task = build_task("no", "no", "no", "yes", class_weights="balanced")
    assert task.weights is not None
    assert task.weights.tolist() == pytest.approx([2 / 3, 2.0])
    model = tiny_model(9, "classify", labels=task.labels).eval()
    batch = Batch(
        torch.arange(8),
        torch.zeros(8, dtype=torch.long),
        Packed.of([2, 2, 2, 2]),
        targets={"classify": torch.tensor([0, 0, 0, 1])},
    )
    logits = model(batch)["classify"]
    expected = F.cross_entropy(logits, batch.targets["classify"], task.weights)  # weighted mean
    assert task.loss(model, batch, {"classify": 4}).total.item() == pytest.approx(expected.item())


def test_balanced_weights_of_multilabel_task() -> None:
    task = build_task('["a"]', '["a"]', '["a", "b"]', "[]", class_weights="balanced")
    assert task.weights is not None
    assert task.weights.tolist() == pytest.approx([1 / 3, 3.0])


def test_restore_keeps_label_type() -> None:
    for task in (
        build_task("no", "yes"),
        build_task("1.5", "2"),
        build_task('["a", "b"]', "[]", threshold=0.3),
    ):
        again = Classify.restore(task.labels, task.settings())
        assert (again.labels, again.options) == (task.labels, task.options)
    hf_task = Classify.restore(("a", "b"), {"problem_type": "multi_label_classification"})
    assert hf_task.options.multi_label
    with pytest.raises(CheckpointError, match=r"bertkit\.task\.options\.treshold: no such setting"):
        Classify.restore(("a", "b"), {"bertkit": {"task": {"options": {"treshold": 1}}}})


def test_restore_rejects_regression_with_several_outputs() -> None:
    with pytest.raises(CheckpointError, match="a regression with 3 outputs"):
        Classify.restore(("a", "b", "c"), {"problem_type": "regression"})


def test_rows_without_label_are_rejected() -> None:
    bare = [LabelExample("a", None, "x"), LabelExample("a", where="f:2")]
    with pytest.raises(DataError, match="f:2: no label"):
        Classify.from_examples(bare, ClassifyOptions())
    with pytest.raises(DataError, match="f:2: no label"):
        build_task("x", "y").check(bare)


def test_single_texts_and_pairs_cannot_be_mixed() -> None:
    with pytest.raises(DataError, match="3 texts; pass one text or a pair"):
        Classify.reader.example("a", ("b", "c"))
    with pytest.raises(DataError, match="a text is empty"):
        Classify.reader.example("a", (" ",))
    rows = [LabelExample("a", "b"), LabelExample("a", where="f:7")]
    with pytest.raises(DataError, match="f:7: no second text, unlike other rows"):
        Classify(("x", "y")).features(rows, None, 8, long="error", labeled=False)  # type: ignore[arg-type]
    single, pairs = (
        build_task("x", "y"),
        Classify.from_examples(
            [LabelExample("a", "b", "x"), LabelExample("a", "b", "y")], ClassifyOptions()
        ),
    )
    with pytest.raises(DataError, match="a text: expected a single text, got a pair"):
        single.check([LabelExample("a", "b", "x")])
    with pytest.raises(DataError, match="f:7: expected a pair, got a single text"):
        pairs.check([LabelExample("a", None, "x", "f:7")])


@pytest.mark.parametrize(
    ("file", "reading", "count", "labels"),
    [("sst2/dev.tsv", {}, 6735, ("0", "1")),
     ("cola/in_domain_dev.tsv", {"text_column": "4", "label_column": "2", "header": False}, 527,
      ("0", "1")), ("mrpc/dev.tsv", {}, 408, ("0", "1")), ("rte/dev.jsonl", {}, 250, None),
     ("qnli/dev.tsv", {}, 500, ("entailment", "not_entailment")),
     ("sms_spam/dev.tsv", {"text_column": "2", "label_column": "1", "header": False}, 500,
      ("ham", "spam")),
     ("ag_news/dev.tsv", {"text_column": "1", "label_column": "2", "header": False}, 1001, None)],
)  # fmt: skip
def test_public_data_sets_are_parsed(
    file: str,
    reading: dict[str, Any],
    count: int,
    labels: tuple[str, ...] | None,
    data_folder: Path,
) -> None:
    found, _ = Classify.reader.read(data_folder / file, Reading(**reading), labeled=True)
    assert len(found) == count
    task = Classify.from_examples(found, ClassifyOptions())
    assert labels is None or task.labels == labels
    task.check(found)


def test_reader_rejects_uneven_rows_and_accepts_trimmed_rows(
    data_folder: Path, tmp_path: Path
) -> None:
    """Some rows of the STS-B file have two more columns."""
    source = data_folder / "stsb" / "sts-dev.tsv"
    with pytest.raises(DataError, match=r"sts-dev\.tsv:\d+: expected 7 columns .* got 9"):
        Classify.reader.read(source, Reading(header=False), labeled=True)
    lines = [line.split("\t")[4:7] for line in source.read_text(encoding="utf-8").splitlines()]
    path = table(tmp_path, *("|".join(cells).replace("\t", " ") for cells in lines))
    found, _ = Classify.reader.read(
        path,
        Reading(label_column="1", text_column="2", pair_column="3", header=False),
        labeled=True,
    )
    assert len(found) == 1500
    assert Classify.from_examples(found, ClassifyOptions()).options.regression


def test_thresholds_must_match_label_count() -> None:
    with pytest.raises(DataError, match="thresholds: 3 thresholds for 2 labels"):
        build_task('["a", "b"]', "[]", thresholds=(0.1, 0.2, 0.3))
    task = build_task('["a", "b"]', "[]", thresholds=(0.9, 0.2))
    (answer,) = answered(task, [[0.0, 0.0]])
    assert answer == LabelsAnswer(["b"], {"a": 0.5, "b": 0.5})
    assert task.uncalibrated() == build_task('["a", "b"]', "[]").options
    with pytest.raises(CheckpointError, match="2 thresholds for 1 labels"):
        Classify.restore(("a",), task.settings())


def test_calibration_optimizes_thresholds_and_temperature() -> None:
    several = build_task('["a", "b"]', "[]")
    dev = labeled('["a"]', "[]", '["b"]', "[]")
    answers = answered(several, [[-1.0, -3.0], [-2.0, -9.0], [-3.0, 1.0], [-2.0, 0.5]])
    calibrated = several.calibrated(answers, dev)
    assert calibrated.chosen_on(several)
    assert several.score(answers, dev)["exact"] < 1.0
    again = answered(calibrated, [[-1.0, -3.0], [-2.0, -9.0], [-3.0, 1.0], [-2.0, 0.5]])
    assert calibrated.score(again, dev) == {"f1_micro": 1.0, "f1_macro": 1.0, "exact": 1.0}
    assert calibrated.calibrated(again, dev) is calibrated
    fixed = build_task('["a", "b"]', "[]", threshold=0.5)
    assert fixed.calibrated(answers, dev) is fixed
    exclusive = build_task("no", "yes", calibrate=True)
    rows = [[0.0, 4.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]]
    dev = labeled("yes", "no", "no", "yes")
    tempered = exclusive.calibrated(answered(exclusive, rows), dev)
    assert tempered.options.temperature > 1.5
    assert not tempered.chosen_on(exclusive)
    calibration = tempered.calibration(answered(tempered, rows), dev)
    assert calibration["error"] < calibration["error_before"]
    assert (
        build_task("no", "yes").calibrated(answered(exclusive, rows), dev).options.temperature
        is None
    )


def test_calibration_report_is_empty_without_temperature() -> None:
    assert build_task("no", "yes").calibration([], []) == {}


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (("1.5", "2"), {"calibrate": True}, "requires one label per text, but train has numbers"),
        (('["a"]', "[]"), {"calibrate": True}, "one label per text, but train has several"),
        (("1.5", "2"), {"temperature": 2.0}, "temperature: requires one label per text"),
        (('["a"]', "[]"), {"temperature": 2.0}, "temperature: requires one label per text"),
        (("1.5", "2"), {"threshold": 0.9}, "threshold: requires several labels"),
        (("a", "b", "c"), {"threshold": 0.9}, "or two labels, but train has one label per text"),
        (("a", "b", "c"), {"tune_threshold": True}, "tune_threshold: requires two labels"),
        (('["a"]', "[]"), {"tune_threshold": True}, "tune_threshold: requires two labels"),
        (("no", "yes"), {"thresholds": (0.5, 0.5)}, "thresholds: requires several labels"),
        (("1.5", "2"), {"class_weights": "balanced"}, "requires one label per text or several"),
    ],
)
def test_options_of_other_label_types_are_rejected(
    labels: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        build_task(*labels, **options)
    build_task(*labels)


def test_score_names_match_scores() -> None:
    for task, label in (
        (build_task("no", "yes"), "yes"),
        (build_task("1.5", "2"), "2"),
        (build_task('["a"]', "[]"), "[]"),
    ):
        answer = answered(task, [[0.5] * len(task.labels)])
        assert set(task.score_names) == set(task.score(answer, labeled(label)))
        assert task.metric in task.score_names
