"""Tests of pipelines of fine-tuned models: order of answers, streams and rejected input."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.families import BERT
from bertkit.models.model import build
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions, LabelExample, reads_pairs


def test_classify_returns_answers_in_order(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    answers = classify(["a", "b c d", "a"])
    assert [a.label for a in answers] == [max(a.scores, key=a.scores.__getitem__) for a in answers]
    for answer in answers:
        assert set(answer.scores) == {"no", "yes", "perhaps"}
        assert sum(answer.scores.values()) == pytest.approx(1.0, abs=1e-5)
        assert answer.score == max(answer.scores.values())
        assert not answer.truncated
    assert answers[0].scores == pytest.approx(answers[2].scores, abs=1e-5)
    assert json.loads(msgspec.json.encode(answers))[0]["label"] == answers[0].label


def test_pairs_differ_from_single_texts(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    single, pair = classify("a b"), classify(("a", "b"))
    assert single.scores != pytest.approx(pair.scores, abs=1e-6)


def test_answers_report_truncation(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    answers = classify(["a", " ".join("ab" * 20)], long="truncate")
    assert [answer.truncated for answer in answers] == [False, True]


def test_regression_returns_score(folders: Path) -> None:
    regress = bertkit.pipeline("classify", folders / "regressor")
    answer = regress("a b")
    assert answer.label == "score"
    assert answer.score == answer.scores["score"]


def test_classify_accepts_texts_lists_and_streams(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    texts = ["a", "b c", "d"] * 100
    many = classify(texts)
    assert classify(texts[1]).scores == pytest.approx(many[1].scores, abs=1e-5)
    read = 0

    def source() -> Iterator[str]:
        nonlocal read
        for text in texts:
            read += 1
            yield text

    stream = classify(source())
    first = next(stream)
    assert read < len(texts)  # the first answer precedes the last text
    for streamed, expected in zip([first, *stream], many, strict=True):
        assert streamed.scores == pytest.approx(expected.scores, abs=1e-5)
    assert classify([]) == []
    assert list(classify(iter(()))) == []


def test_classify_rejects_unsupported_input(folders: Path) -> None:
    classify = bertkit.pipeline("classify", folders / "classifier")
    for item in (3, ("a",), ("a", 3), (3, "a"), ("a", ["b", 3])):
        with pytest.raises(DataError, match="unsupported input of type"):
            classify([item])
    with pytest.raises(DataError, match="3 texts; pass one text or a pair"):
        classify(("a", ["b", "c"]))
    with pytest.raises(ConfigError, match="long: classify supports error, truncate, window"):
        classify("a", long="tile")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no second text, unlike other rows"):
        classify([("a", "b"), "c"])
    assert bertkit.pipeline("next-sentence", folders / "pretrained")([], []) == []


def test_load_requires_labels_and_multilabel_is_restored(folders: Path, tmp_path: Path) -> None:
    import shutil

    with pytest.raises(CheckpointError, match="pass labels to create a new one"):
        bertkit.load(folders / "pretrained", heads=("classify",))
    folder = tmp_path / "multi"
    shutil.copytree(folders / "classifier", folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings["problem_type"] = "multi_label_classification"
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    answer = bertkit.pipeline("classify", folder)("a b")
    assert sum(answer.scores.values()) != pytest.approx(1.0, abs=1e-3)
    assert answer.labels == [n for n in answer.labels if answer.scores[n] >= 0.5]


def test_weights_override_outdated_list_of_heads(folders: Path, tmp_path: Path) -> None:
    """Transformers copies the key `bertkit` into the directory of a fine-tuned model."""
    import shutil

    folder = tmp_path / "tuned"
    shutil.copytree(folders / "classifier", folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings["bertkit"] = {"heads": ["mlm", "nsp"]}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert tuple(bertkit.load(folder).model.heads) == ("classify",)


def test_pipeline_rejects_model_of_another_task(folders: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(folders / "classifier")
    task = bertkit.tasks.find("tag")(("O", "B-x"))
    config = loaded.model.config
    save(
        tmp_path / "tagger",
        build(config, ("tag",), labels=task.labels),
        loaded.tokenizer,
        BERT,
        labels=task.labels,
        settings=task.settings(),
    )
    with pytest.raises(CheckpointError, match=r"tagger: the model was fine-tuned for tag"):
        bertkit.pipeline("classify", tmp_path / "tagger")
    with pytest.raises(CheckpointError, match="no tag head"):
        bertkit.pipeline("tag", folders / "classifier")


def test_reads_pairs_is_inferred_from_examples() -> None:
    rows = [LabelExample("a", None, "x"), LabelExample("b", None, "y")]
    pairs = [replace(row, pair="c") for row in rows]
    assert reads_pairs(Classify.from_examples(rows, ClassifyOptions()).settings()) is False
    assert reads_pairs(Classify.from_examples(pairs, ClassifyOptions()).settings()) is True
    assert reads_pairs({"bertkit": {"task": "classify"}}) is None
