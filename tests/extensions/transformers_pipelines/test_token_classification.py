"""Labels, windows, and models of token classification."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.extensions.transformers_pipelines.cases import LONG, PEOPLE
from tests.extensions.transformers_pipelines.models import write_encoder
from tests.factories import tiny_tokenizer

import bertkit
from bertkit.errors import CheckpointError, ConfigError


def test_models_of_golden_files_predict_all_kinds_of_labels(models: Path) -> None:
    """Otherwise, the golden files would not contain each case of the strategies."""
    ner = bertkit.pipeline("ner", models / "roberta-tagger")
    everything = ner(PEOPLE, ignore_labels=[])
    assert {"O", "B-PER", "I-PER", "I-LOC"} <= {token["entity"] for token in everything}
    strategies = ("simple", "first", "average", "max")
    results = [ner(PEOPLE, aggregation_strategy=strategy) for strategy in strategies]
    assert all(result not in results[:index] for index, result in enumerate(results))


def test_window_must_exceed_stride(models: Path) -> None:
    ner = bertkit.pipeline("ner", models / "tagger")
    with pytest.raises(ConfigError, match=r"stride: windows overlap by 62 tokens.*decrease stride"):
        ner(LONG, stride=62)


def test_tagger_with_crf_is_rejected(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(["a"])
    labels, keys = ("O", "B-X", "I-X"), {"name": "tag", "options": {"crf": True}}
    write_encoder(tmp_path / "crf", tokenizer, "crf", labels=labels, bertkit={"task": keys})
    with pytest.raises(CheckpointError, match=r'the model has a CRF.*use bertkit.pipeline\("tag"'):
        bertkit.pipeline("ner", tmp_path / "crf")
