"""GLiNER directories load, or are rejected with the name of the setting or weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extensions.zero_shot.gliner_models import GOLDEN, LABELS, TEXTS, write_gliner
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.errors import CheckpointError
from bertkit.extensions.zero_shot.gliner import KEYS
from bertkit.extensions.zero_shot.gliner_files import load_gliner


@pytest.mark.parametrize("variant", ["spans", "spans without LSTM"])
def test_pytorch_file_gives_the_same_predictions(variant: str, tmp_path: Path) -> None:
    answers = []
    for pytorch in (False, True):
        folder = write_gliner(tmp_path / str(pytorch), variant, pytorch=pytorch)
        assert (folder / "model.safetensors").exists() != pytorch
        find = bertkit.pipeline("zero-shot-entities", folder)
        answers.append(find(TEXTS, LABELS, threshold=0.3))
    assert answers[0] == answers[1]
    assert any(answers[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"span_mode": "conv_max"}, "span_mode = 'conv_max' .only 'markerV0' or 'token_level'"),
        ({"subtoken_pooling": "mean"}, "subtoken_pooling = 'mean'"),
        ({"labels_encoder": "bge"}, "labels_encoder = 'bge'"),
        ({"relations_layer": "dot"}, "relations_layer = 'dot'"),
        ({"fuse_layers": True}, "fuse_layers = True"),
        ({"post_fusion_schema": "l2l"}, "post_fusion_schema = 'l2l'"),
        ({"words_splitter_type": "spacy"}, "words_splitter_type = 'spacy'"),
        ({"decoder_config": {"model_type": "gpt2"}}, "decoder_config = "),
        ({"hidden_size": "large"}, r"Expected `int`, got `str` - at `\$.hidden_size`"),
        ({"num_rnn_layers": 10**9}, "num_rnn_layers"),
        ({"hidden_size": 8}, "has shape"),
        ({"class_token_index": 5}, "class_token_index is 5, but '<<ENT>>' has the id 67"),
        ({"ent_token": "<<X>>"}, "'<<X>>' has the id None"),
        ({"vocab_size": 50}, "69×16, expected 50×16"),
        ({"encoder_config": None}, "encoder_config is missing; save config.json and the tokenizer"),
        ({"encoder_config": {"model_type": "funnel"}}, "model_type = 'funnel' is not supported"),
        ({"encoder_config": {"model_type": "t5"}}, "encoder_config.model_type = 't5'"),
    ],
)
def test_unsupported_settings_are_rejected(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_gliner(tmp_path / "model", changes=changes)
    with pytest.raises(CheckpointError, match=message):
        load_gliner(folder)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("rnn.lstm.bias_ih_l0", "rnn.lstm.bias_ih_l0"),
        ("prompt_rep_layer.0.weight", "prompt_rep_layer.0.weight"),
        ("span_rep_layer.span_rep_layer.project_end.3.bias", "span_rep_layer.project_end.3.bias"),
        ("token_rep_layer.bert_layer.model.encoder.LayerNorm.bias", "encoder.LayerNorm.bias"),
    ],
)
def test_missing_weight_is_named(name: str, shown: str, tmp_path: Path) -> None:
    folder = write_gliner(tmp_path / "model", edit=lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"missing .*{shown}"):
        load_gliner(folder)


def test_unknown_weight_is_rejected(tmp_path: Path) -> None:
    extra = {"cross_fuser.weight": torch.zeros(3)}
    folder = write_gliner(tmp_path / "model", edit=lambda tensors: tensors.update(extra))
    with pytest.raises(CheckpointError, match=r"unknown .*cross_fuser.weight"):
        load_gliner(folder)


def test_other_directories_are_rejected(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "bert", tiny_tokenizer("abc"), "mlm")
    with pytest.raises(CheckpointError, match=r"gliner_config\.json is missing"):
        bertkit.pipeline("zero-shot-entities", folder)
    folder = write_gliner(tmp_path / "model")
    (folder / "gliner_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CheckpointError, match="expected a JSON object"):
        bertkit.pipeline("zero-shot-entities", folder)


def test_keys_of_gliner_are_known() -> None:
    written = json.loads(GOLDEN.read_text("utf-8"))["keys"]
    assert len(written) > 25
    assert not {*written} - {*KEYS.applied, *KEYS.irrelevant, *KEYS.neutral}
