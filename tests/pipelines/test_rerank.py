"""Tests of the rerank pipeline."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.errors import CheckpointError
from bertkit.families import BERT
from bertkit.models.model import build
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions


def test_rerank_scores_pairs(folders: Path) -> None:
    rerank = bertkit.pipeline("rerank", folders / "regressor")
    texts = ["a b", "c", "a b", "d e f g h i j a b c d e f g h i j"]
    scores = rerank("a", texts)
    assert (scores.shape, scores.dtype) == ((4,), np.float32)
    np.testing.assert_allclose(scores[0], scores[2], atol=1e-6)
    score = bertkit.pipeline("classify", folders / "regressor")
    np.testing.assert_allclose(scores[1], score(("a", "c")).score, atol=1e-6)
    assert rerank("a", []).shape == (0,)
    np.testing.assert_allclose(rerank("a", "a b"), scores[:1], atol=1e-6)
    np.testing.assert_allclose(rerank("a", np.array(texts)), scores, atol=1e-6)


def test_rerank_with_two_labels_returns_log_odds(folders: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(folders / "pretrained")
    model = build(loaded.model.config, ("classify",), labels=("no", "yes"))
    task = Classify(("no", "yes"), ClassifyOptions(pairs=True))
    settings = {"labels": task.labels, "settings": task.settings()}
    save(tmp_path / "two", model, loaded.tokenizer, BERT, **settings)
    scores = bertkit.pipeline("rerank", tmp_path / "two")("a b", ["c", "d"])
    answers = bertkit.pipeline("classify", tmp_path / "two")([("a b", "c"), ("a b", "d")])
    for score, answer in zip(scores.tolist(), answers, strict=True):
        assert 1 / (1 + np.exp(-score)) == pytest.approx(answer.scores["yes"], abs=1e-6)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (("ham", "spam"), ClassifyOptions(pairs=False), "classifies single texts"),
        (("stars",), ClassifyOptions(pairs=False, regression=True), "classifies single texts"),
        (("a", "b"), ClassifyOptions(pairs=True, multi_label=True), "has 2 labels"),
        (("a", "b", "c"), ClassifyOptions(pairs=True), "has 3 labels"),
        (("no", "yes"), None, "does not specify pairs"),
        (("fit",), ClassifyOptions(pairs=True, regression=True), None),
        (("LABEL_0",), None, None),  # published cross-encoders have this label
    ],
)
def test_rerank_rejects_classifier_of_single_texts(
    labels: tuple[str, ...],
    options: ClassifyOptions | None,
    message: str | None,
    folders: Path,
    tmp_path: Path,
) -> None:
    loaded = bertkit.load(folders / "pretrained")
    model = build(loaded.model.config, ("classify",), labels=labels)
    settings = Classify(labels, options).settings() if options else {}
    save(tmp_path / "m", model, loaded.tokenizer, BERT, labels=labels, settings=settings)
    if message is None:
        assert bertkit.pipeline("rerank", tmp_path / "m")("a", ["b"]).shape == (1,)
    else:
        with pytest.raises(CheckpointError, match=message):
            bertkit.pipeline("rerank", tmp_path / "m")


def test_cross_encoder_scores_match_sentence_transformers(folders: Path, tmp_path: Path) -> None:
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    cross_encoder = peer.CrossEncoder(str(folders / "pretrained"), num_labels=1, device="cpu")
    cross_encoder.save_pretrained(str(tmp_path / "cross"))
    config = json.loads((tmp_path / "cross" / "config.json").read_text())
    del config["bertkit"]  # copied from the base model
    (tmp_path / "cross" / "config.json").write_text(json.dumps(config))
    texts = ["b c", "d", "e f g"]
    peer_scores = cross_encoder.predict(
        [("a", text) for text in texts], activation_fn=torch.nn.Identity()
    )
    scores = bertkit.pipeline("rerank", tmp_path / "cross")("a", texts)
    np.testing.assert_allclose(scores, peer_scores, atol=1e-5)


def test_rerank_rejects_unsupported_heads(folders: Path) -> None:
    with pytest.raises(CheckpointError, match="has 3 labels"):
        bertkit.pipeline("rerank", folders / "classifier")
    with pytest.raises(CheckpointError, match="no classify head"):
        bertkit.pipeline("rerank", folders / "pretrained")
