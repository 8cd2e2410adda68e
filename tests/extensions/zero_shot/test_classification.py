"""Zero-shot classification equals transformers with NLI models, and works with embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.extensions.conftest import Server
from tests.extensions.transformers_pipelines.cases import Case
from tests.extensions.transformers_pipelines.golden_files import call, difference, parametrize
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.zero_shot import classification

WORDS = [*"abcdefghij", "this", "example", "is", "about", ".", "sports", "politics", "science"]
LABELS = ["sports", "politics", "science"]
TEXTS = ["a b c", "d e f g h", "j"]
NLI = ("contradiction", "neutral", "entailment")


def write_model(folder: Path, labels: tuple[str, ...] = NLI, **settings: Any) -> Path:
    tokenizer = tiny_tokenizer(WORDS)
    settings |= {"labels": labels, "spread": 0.3, "task": "classify"}
    return tiny_folder(folder, tokenizer, "classify", **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("nli") / "model")


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", [LABELS, ["science"]], ids=["several", "one"])
@pytest.mark.parametrize("names", [NLI, NLI[::-1], ("entailment", "not_entailment")])
def test_scores_match_transformers(
    names: tuple[str, ...], labels: list[str], multi_label: bool, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    path, template = write_model(tmp_path / "model", names), "This example is about {}."
    reference = transformers.pipeline("zero-shot-classification", model=str(path), device="cpu")
    expected = reference(TEXTS, labels, hypothesis_template=template, multi_label=multi_label)
    classify = bertkit.pipeline("zero-shot-classification", path)
    answers = classify(TEXTS, labels, hypothesis_template=template, multi_label=multi_label)
    for answer, row in zip(answers, expected, strict=True):
        assert [*answer] == [*row]
        assert (answer["sequence"], answer["labels"]) == (row["sequence"], row["labels"])
        np.testing.assert_allclose(answer["scores"], row["scores"], atol=1e-5)
    other = classify(TEXTS, labels, hypothesis_template="a {}", multi_label=multi_label)
    assert not np.allclose(other[0]["scores"], expected[0]["scores"], atol=1e-5)


@parametrize("zero_shot")
def test_results_match_transformers_4(case: Case, expected: Any, models: Path) -> None:
    assert not difference(call(case, models), expected)


def test_text_alone_equals_text_in_batch(folder: Path) -> None:
    classify = bertkit.pipeline("zero-shot-classification", folder)
    together = classify(TEXTS, LABELS)
    for text, answer in zip(TEXTS, together, strict=True):
        alone = classify(text, LABELS)
        assert alone["labels"] == answer["labels"]
        np.testing.assert_allclose(alone["scores"], answer["scores"], atol=1e-5)
        assert sum(alone["scores"]) == pytest.approx(1.0, abs=1e-5)


def test_small_batches_give_the_same_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = bertkit.pipeline("zero-shot-classification", folder)
    expected = pipeline(TEXTS, LABELS)
    monkeypatch.setattr(classification, "PAIRS_PER_BATCH", 4)
    for answer, other in zip(pipeline(TEXTS, LABELS), expected, strict=True):
        assert answer["labels"] == other["labels"]
        np.testing.assert_allclose(answer["scores"], other["scores"], atol=1e-5)


def test_long_text_is_truncated_or_rejected(folder: Path) -> None:
    classify = bertkit.pipeline("zero-shot-classification", folder)
    long = "a b c d " * 50
    (answer,) = classify.run(classify.prepare([long], candidate_labels=LABELS))
    assert answer.truncated
    assert answer.labels == classify(long, LABELS)["labels"]
    with pytest.raises(DataError, match="tokens"):
        classify("a b c d " * 50, LABELS, long="error")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "candidate_labels: there are no labels"),
        ({"candidate_labels": []}, "candidate_labels: there are no labels"),
        ({"candidate_labels": " ,"}, "candidate_labels: there are no labels"),
        ({"candidate_labels": ["a", "a"]}, "must not contain"),
        ({"candidate_labels": 3}, "candidate_labels: expected `array`, got `int`"),
        ({"candidate_labels": ["a", ""]}, "candidate_labels"),
        ({"candidate_labels": [str(n) for n in range(1_001)]}, "length <= 1000"),
        ({"candidate_labels": ["a"], "hypothesis_template": "{}" + "a" * 300}, "length <= 300"),
        ({"candidate_labels": ["a"], "hypothesis_template": "about"}, "must contain {} once"),
        ({"candidate_labels": ["a"], "multi_class": True}, "multi_class: ZeroShot has no such"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str, folder: Path) -> None:
    classify = bertkit.pipeline("zero-shot-classification", folder)
    with pytest.raises(ConfigError, match=message):
        classify("a b", **options)


@pytest.mark.parametrize("labels", [("no", "yes"), ("entailment", "entails", "contradiction")])
def test_classifier_without_nli_labels_is_rejected(labels: tuple[str, ...], tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", labels)
    with pytest.raises(CheckpointError, match="one label that starts with 'entail'"):
        bertkit.pipeline("zero-shot-classification", path)


def test_pretrained_model_is_rejected(tmp_path: Path) -> None:
    path = tiny_folder(tmp_path / "model", tiny_tokenizer(WORDS), "mlm")
    with pytest.raises(CheckpointError, match="neither a classifier nor an embedding model"):
        bertkit.pipeline("zero-shot-classification", path)


def test_embedding_model_predicts_topics(minilm: Path) -> None:
    classify = bertkit.pipeline("zero-shot-classification", minilm)
    texts = ["The striker scored twice.", "Parliament passed the law.", "The telescope saw a star."]
    answers = classify(texts, LABELS, hypothesis_template="This text is about {}.")
    assert [answer["labels"][0] for answer in answers] == LABELS
    assert all(sum(answer["scores"]) == pytest.approx(1.0, abs=1e-5) for answer in answers)
    with pytest.raises(ConfigError, match="multi_label or a single label requires an NLI model"):
        classify(texts, LABELS, multi_label=True)
    with pytest.raises(ConfigError, match="a single label requires an NLI model"):
        classify(texts, LABELS[:1])
    with pytest.raises(DataError, match="tokens"):
        classify("word " * 600, LABELS, long="error")


def test_embeddings_classify_news(minilm: Path, data_folder: Path) -> None:
    """AG News without training: far above the 25 % of guessing."""
    topics = {"World": "world", "Sports": "sports", "Business": "business"}
    topics["Sci/Tech"] = "technology"
    lines = (data_folder / "ag_news" / "dev.tsv").read_text(encoding="utf-8").splitlines()[:200]
    rows = [line.rsplit("\t", 1) for line in lines]
    classify = bertkit.pipeline("zero-shot-classification", minilm)
    template = "News about {}."
    answers = classify([t for t, _ in rows], [*topics.values()], hypothesis_template=template)
    right = [a["labels"][0] == topics[topic] for a, (_, topic) in zip(answers, rows, strict=True)]
    assert np.mean(right) > 0.6


@pytest.mark.parametrize(
    "labels", [["sports,politics"], ["sports", "politics"]], ids=["commas", "repeated"]
)
def test_predict_accepts_labels(
    labels: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["predict", str(folder), "a b c", "--pipeline", "zero-shot-classification"]
    command += [word for label in labels for word in ("--candidate-labels", label)]
    assert cli.run(command) == 0
    expected = bertkit.pipeline("zero-shot-classification", folder)("a b c", ["sports", "politics"])
    assert json.loads(capsys.readouterr().out)["labels"] == expected["labels"]
    templates = ["--hypothesis-template", "a {}", "--hypothesis-template", "b {}"]
    assert cli.run([*command, *templates]) == 2
    assert "hypothesis_template: expected `str`, got `array`" in capsys.readouterr().err


def test_server_counts_a_sequence_per_label(folder: Path, server: Server) -> None:
    """Memory and the queue are checked before the texts are encoded with each label."""
    registry, few = ModelRegistry([str(folder)], None), Limits(queue_tokens=64)
    body = {"inputs": ["a"], "candidate_labels": [f"a {number}" for number in range(30)]}
    assert server(at=registry).post("/zero-shot-classification", json=body).status_code == 200
    response = server(few, at=registry).post("/zero-shot-classification", json=body)
    assert response.status_code == 413
    pipeline = bertkit.pipeline("zero-shot-classification", folder)
    assert pipeline.sequences_per_item(candidate_labels=body["candidate_labels"]) == 30
