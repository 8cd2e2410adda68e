"""Each saved setting of a SPLADE model has the effect of sentence-transformers, or is rejected."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.extensions.search.splade_models import TEXTS, write_mlm, write_splade
from tests.extensions.search.test_sparse_embedding import dense, peer

import bertkit
from bertkit.errors import CheckpointError
from bertkit.extensions.search.splade_files import ENCODER_KEYS, SPARSE_KEYS, Splade, read_splade

pytestmark = pytest.mark.filterwarnings("ignore")
MODULES, ENCODER = "modules.json", "sentence_bert_config.json"
SPLADE, SETTINGS = "1_SpladePooling/config.json", "config_sentence_transformers.json"
PACKAGE = "sentence_transformers.base.modules.transformer"
STATES = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
LOGITS = {"text": {"method": "forward", "method_output_name": "logits"}}

ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    (ENCODER, {"max_seq_length": 8}),
    (ENCODER, {"max_seq_length": None}),
    (ENCODER, {"transformer_task": "fill-mask", "unpad_inputs": False}),
    (ENCODER, {"modality_config": LOGITS, "module_output_name": "token_embeddings"}),
    (SPLADE, {"chunk_size": 2}),
    (SPLADE, {"word_embedding_dimension": 32}),
    (SPLADE, {"pooling_strategy": "sum", "activation_function": "log1p_relu"}),
    (SETTINGS, {"max_active_dims": 4}),
    (SETTINGS, {"default_prompt_name": "query"}),
    (SETTINGS, {"similarity_fn_name": "cosine"}),
]
REJECTED: list[tuple[str, dict[str, Any], str]] = [
    (ENCODER, {"do_lower_case": True}, "do_lower_case = True"),
    (ENCODER, {"transformer_task": "feature-extraction"}, "transformer_task = "),
    (ENCODER, {"modality_config": STATES}, "modality_config = "),
    (ENCODER, {"tokenizer_args": {"truncation_side": "left"}}, "tokenizer_args = "),
    (ENCODER, {"max_seq_length": "8"}, "max_seq_length must be a number"),
    (SPLADE, {"pooling_strategy": "mean"}, "pooling_strategy"),
    (SPLADE, {"activation_function": "tanh"}, "activation_function"),
    (SETTINGS, {"max_active_dims": 0}, "max_active_dims"),
    (SETTINGS, {"default_prompt_name": "topic"}, "default_prompt_name: no prompt 'topic'"),
    (SETTINGS, {"prompts": ["a"]}, "prompts must be an object"),
    (SETTINGS, {"truncate_dim": 4}, "truncate_dim = 4"),
    (SETTINGS, {"model_type": "SentenceTransformer"}, "model_type = "),
]


def edit(path: Path, changes: dict[str, Any]) -> None:
    content = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps(content), encoding="utf-8")


def test_every_key_of_sentence_transformers_is_known() -> None:
    library = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    pooling = {*inspect.signature(SpladePooling).parameters, *SpladePooling.config_keys}
    irrelevant = {"chunk_size", "embedding_dimension"}
    assert pooling - irrelevant == {*Splade.__struct_fields__} - {"max_active_dims", "prompts"}
    source = inspect.getsource(inspect.getmodule(library.SparseEncoder))
    settings = {*re.findall(r'model_config\.get\("(\w+)"', source)}
    assert "max_active_dims" in settings
    known = {*SPARSE_KEYS.applied, *SPARSE_KEYS.neutral, *SPARSE_KEYS.irrelevant}
    assert settings - {"max_active_dims"} <= known
    assert ENCODER_KEYS.neutral["transformer_task"] == ("fill-mask",)


@pytest.mark.parametrize(("file", "changes"), ACCEPTED)
def test_accepted_setting_matches_sentence_transformers(
    file: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_splade(tmp_path / "model")
    before = dense(bertkit.pipeline("sparse-embedding", folder)(TEXTS, long="truncate"), 32)
    edit(folder / file, changes)
    expected = peer(folder, TEXTS)
    found = dense(bertkit.pipeline("sparse-embedding", folder)(TEXTS, long="truncate"), 32)
    assert np.abs(found - expected).max() < 1e-5
    # Control: settings with an effect change the weights.
    has_effect = {"pooling_strategy", "max_active_dims", "default_prompt_name"} & changes.keys()
    has_effect |= {"max_seq_length"} if changes.get("max_seq_length") == 8 else set()
    assert (np.abs(found - before).max() > 1e-2) == bool(has_effect)


@pytest.mark.parametrize(("file", "changes", "message"), REJECTED)
def test_unsupported_setting_is_rejected_by_name(
    file: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_splade(tmp_path / "model")
    edit(folder / file, changes)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        bertkit.load(folder)


def modules(*entries: tuple[str, str]) -> list[dict[str, str]]:
    return [{"path": path, "type": kind} for path, kind in entries]


SPARSE = "sentence_transformers.sparse_encoder.models"
POOLING = ("1_SpladePooling", f"{SPARSE}.SpladePooling")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (modules(("", f"{PACKAGE}.Transformer"), POOLING), "transformer_task = "),
        (modules(("", "my_code.MLMTransformer"), POOLING), "'my_code.MLMTransformer' is not"),
        (modules(("", f"{SPARSE}.MLMTransformer"), ("", f"{SPARSE}.Other")), "is not supported"),
        (modules(("../x", f"{SPARSE}.MLMTransformer"), POOLING), "outside of the model directory"),
        (modules(("", "sentence_transformers.models.Router")), "has two modules"),
        ({}, "has two modules"),
    ],
)
def test_other_modules_are_rejected(content: Any, message: str, tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "model")
    (folder / MODULES).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        bertkit.load(folder)


def test_transformer_with_the_task_of_masks_is_loaded(tmp_path: Path) -> None:
    """Since version 5.4, sentence-transformers saves this module instead of MLMTransformer."""
    folder = write_splade(tmp_path / "model")
    before = bertkit.pipeline("sparse-embedding", folder)(TEXTS)
    content = modules(("", f"{PACKAGE}.Transformer"), POOLING)
    (folder / MODULES).write_text(json.dumps(content), encoding="utf-8")
    edit(folder / ENCODER, {"transformer_task": "fill-mask"})
    assert bertkit.pipeline("sparse-embedding", folder)(TEXTS) == before


def test_maximum_length_is_applied(tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "model")
    edit(folder / ENCODER, {"max_seq_length": 6})
    assert bertkit.load(folder).length == 6
    assert read_splade(write_mlm(tmp_path / "plain")) == Splade()
