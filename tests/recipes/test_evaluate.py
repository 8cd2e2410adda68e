"""Scores of a saved folder, and the refusal to score a head that was never trained."""

import json
from pathlib import Path

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.errors import ConfigError, DataError
from bertkit.recipes.evaluate import evaluate
from bertkit.tasks.classify import Example


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = tiny_tokenizer("abcd")
    return tiny_folder(tmp_path / "model", tokenizer, "classify", labels=("no", "yes"), length=8)


def test_scores_equal_the_answers(folder: Path, tmp_path: Path) -> None:
    classify = bertkit.pipeline("classify", folder)
    texts = ["a", "b c", "d d d", "c b a b c d a b c d"]
    answers = classify(texts, long="truncate")
    flip = {"no": "yes", "yes": "no"}
    rows = [Example(t, None, a.label) for t, a in zip(texts, answers, strict=True)]
    rows[1] = Example(texts[1], None, flip[answers[1].label])
    found = evaluate(classify, rows, errors=tmp_path / "errors")
    assert found["accuracy"] == pytest.approx(3 / 4)
    assert found["rows"] == 4
    assert found["truncated"] == 1
    (worst,) = (tmp_path / "errors" / "errors.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(worst)["shown"] == texts[1]
    with pytest.raises(ConfigError, match="exists already; choose another errors="):
        evaluate(classify, rows, errors=tmp_path / "errors")


def test_unknown_labels_are_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"dev\.tsv:7: label 'maybe' is not"):
        evaluate(bertkit.pipeline("classify", folder), [Example("a", None, "maybe", "dev.tsv:7")])
    with pytest.raises(DataError, match=r"^examples: no rows"):
        evaluate(bertkit.pipeline("classify", folder), [])
