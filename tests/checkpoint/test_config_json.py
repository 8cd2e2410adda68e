"""Labels, heads, and lengths in config.json, and settings that bertkit rejects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.factories import edit_config, tiny_folder, tiny_model

from bertkit.checkpoint.config_json import architecture_of, config_of
from bertkit.checkpoint.directory import load
from bertkit.errors import CheckpointError
from bertkit.families import BERT
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train


@pytest.fixture(scope="module")
def tokenizer(english: list[str]) -> Tokenizer:
    return train(english[:5], kind="wordpiece", size=200)


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    labels = ("bad", "fair", "good")
    return tiny_folder(
        tmp_path / "model", tokenizer, "classify", labels=labels, layers=1, length=64
    )


def test_labels_default_to_numbered_names(folder: Path) -> None:
    """Transformers omits id2label if a model has two labels without names."""
    edit_config(folder, id2label=None, label2id=None)
    assert load(folder).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_labels_are_ordered_by_id(folder: Path) -> None:
    edit_config(folder, id2label={"2": "c", "0": "a", "1": "b"})
    assert load(folder).labels == ("a", "b", "c")


def test_transformers_directory_without_label_names_loads(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    config = transformers.BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    assert load(tmp_path).labels == ("LABEL_0", "LABEL_1")


def test_load_rejects_tensorflow_checkpoint(tmp_path: Path) -> None:
    for name in ("bert_config.json", "bert_model.ckpt.index", "vocab.txt"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="got a TensorFlow checkpoint; use the same model"):
        load(tmp_path)


# More cases are in faults/test_bad_input.py.
@pytest.mark.parametrize(
    ("changes", "message"),
    [({"model_type": None}, r"config\.json: has no model_type; add"),
     ({"bertkit": {"length": "long"}}, r"config\.json: bertkit\.length must be a number of tokens"),
     ({"id2label": {"0": "a"}}, "id2label has 1 labels, but the classify head has 3"),
     ({"id2label": {"1": "a", "2": "b", "3": "c"}}, "keys of id2label must be 0, 1, 2, ..., "),
     ({"id2label": {"0": "a", "1": "b", "5": "c"}}, r"got 0, 1, 5; fix them"),
     ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "the same name for two labels")],
)  # fmt: skip
def test_load_reports_file_of_invalid_setting(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    # The unchanged directory loads.
    load(folder)
    edit_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_saved_config_contains_architecture_heads_and_length(tokenizer: Tokenizer) -> None:
    model = tiny_model(tokenizer, "classify", labels=("no", "yes"), layers=1, length=64)
    config = config_of(model, tokenizer, BERT, ("no", "yes"), {"problem_type": "x"}, 32)
    assert architecture_of(config) == "BertForSequenceClassification"
    assert config["bertkit"] == {"heads": ["classify"], "length": 32}
    assert (config["id2label"], config["problem_type"]) == ({"0": "no", "1": "yes"}, "x")
    assert architecture_of({"architectures": []}) == architecture_of({}) == ""


def test_config_rejects_unsupported_head_combination(tokenizer: Tokenizer) -> None:
    model = tiny_model(tokenizer, "classify", "answer", labels=("no", "yes"), layers=1)
    with pytest.raises(CheckpointError, match="heads classify, answer cannot be combined"):
        config_of(model, tokenizer, BERT, ("no", "yes"), {}, None)
