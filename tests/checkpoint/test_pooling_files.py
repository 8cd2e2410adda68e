"""Pooling files: bertkit and sentence-transformers compute the same vectors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder

import bertkit
from bertkit.checkpoint.directory import load
from bertkit.checkpoint.pooling_files import ACTIVATIONS, read_json, read_pooling, write_pooling
from bertkit.errors import CheckpointError
from bertkit.nn.pooling import Activation, Dense, Pooling
from bertkit.pipelines import pipeline
from bertkit.text.prompts import DOCUMENT, Prompts
from bertkit.text.vocabulary_training import train


@pytest.fixture
def plain(english: list[str], tmp_path: Path) -> Path:
    """Return a model directory without pooling files."""
    tokenizer = train(english[:3], kind="wordpiece", size=200)
    return tiny_folder(tmp_path / "plain", tokenizer, layers=2, length=48)


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_pooling_matches_sentence_transformers(
    mode: Any, normalize: bool, plain: Path, english: list[str]
) -> None:
    pooling = Pooling(mode, normalize)
    write_pooling(plain, pooling, hidden=16, length=32)
    assert read_pooling(plain) == (pooling, plain, 32)
    assert load(plain).length == 32
    check_vectors(plain, english)


@pytest.mark.parametrize("activation", ACTIVATIONS.values())
@pytest.mark.parametrize("bias", [False, True])
def test_dense_layer_matches_sentence_transformers(
    activation: Activation, bias: bool, plain: Path, english: list[str]
) -> None:
    dense = Dense(16, 5, activation, bias=bias).requires_grad_(False)
    write_pooling(plain, Pooling(normalize=True, dense=dense), hidden=16, length=32)
    check_vectors(plain, english)
    # Different weights change the result.
    dense.linear.weight += 0.1
    found, *_ = read_pooling(plain)
    assert found is not None
    assert found.dense is not None
    assert abs(found.dense.linear.weight - dense.linear.weight).max() > 0.05


def test_dense_layer_from_sentence_transformers_loads(
    plain: Path, english: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    parts = [
        modules.Transformer(str(plain), max_seq_length=32),
        modules.Pooling(16, "cls"),
        modules.Dense(16, 7, activation_function=torch.nn.Identity()),
    ]
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "saved"))
    check_vectors(tmp_path / "saved", english)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"activation_function": "os.system"}, "activation_function = 'os.system' is not supported"),
     ({"use_residual": True}, "use_residual = True"),
     ({"module_input_name": "token_embeddings"}, "module_input_name"),
     ({"in_features": "x"}, "in_features and out_features must be positive"),
     ({"out_features": 6}, "the weights do not match"),
     ({"in_features": 10**7, "out_features": 10**9}, "the weights do not match"),
     ({"bias": False}, "the weights do not match")],
)  # fmt: skip
def test_load_rejects_unsupported_dense_layers(
    change: dict[str, Any], message: str, plain: Path
) -> None:
    write_pooling(plain, Pooling(dense=Dense(16, 5)), hidden=16, length=32)
    path = plain / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        load(plain)


def test_pooling_option_keeps_dense_layer(plain: Path) -> None:
    write_pooling(plain, Pooling(dense=Dense(16, 5)), hidden=16, length=32)
    outputs = {
        mode: bertkit.pipeline("embed", plain, pooling=mode)("a") for mode in ("mean", "cls")
    }
    assert {found.shape for found in outputs.values()} == {(1, 5)}
    assert not np.allclose(outputs["mean"], outputs["cls"])


def test_load_rejects_dense_layer_of_wrong_shape(plain: Path) -> None:
    write_pooling(plain, Pooling(normalize=True, dense=Dense(12, 5)), hidden=12, length=32)
    with pytest.raises(CheckpointError, match="differs from the hidden size of the encoder, 16"):
        load(plain)
    path = plain / "modules.json"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([*modules[:2], modules[3], modules[2]]), encoding="utf-8")
    with pytest.raises(CheckpointError, match="module 'Dense' after 'Normalize'"):
        load(plain)


def test_prompts_match_sentence_transformers(plain: Path, english: list[str]) -> None:
    prompts = Prompts({"query": "find: ", "document": "read: ", "topic": "group: "}, "topic")
    write_pooling(plain, Pooling(prompts=prompts), hidden=16, length=32)
    found = read_pooling(plain)[0]
    assert found is not None
    assert found.prompts == prompts
    check_prompts(plain, [text[:20] for text in english[:4]])


def test_prompts_of_minilm_match_sentence_transformers(minilm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "minilm"
    shutil.copytree(minilm, folder)
    settings = {
        "prompts": {"query": "query: ", "document": "passage: "},
        "default_prompt_name": "document",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    check_prompts(folder, ["a cat on a mat", "What is dark matter, and where?"])


def check_prompts(folder: Path, texts: list[str]) -> None:
    """Check prompts for queries and documents, and the default prompt."""
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    hf_model = peer.SentenceTransformer(str(folder), device="cpu")
    embed = pipeline("embed", folder)
    outputs = {
        "query": (hf_model.encode_query(texts), embed(texts, prompt="query")),
        "document": (hf_model.encode_document(texts), embed(texts, prompt="document")),
        "default": (hf_model.encode(texts), embed(texts)),
        "own": (hf_model.encode(texts, prompt="My own: "), embed(texts, prompt="My own: ")),
        "none": (hf_model.encode(texts, prompt=""), embed(texts, prompt="")),
    }
    for expected, found in outputs.values():
        assert abs(expected - found).max() <= 1e-6
    bare = outputs["none"][1]
    assert all(abs(outputs[name][1] - bare).max() > 1e-2 for name in outputs if name != "none")


def test_passage_prompt_is_used_for_documents(plain: Path) -> None:
    """sentence-transformers prepends its own empty `document` prompt instead of `passage`."""
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    prompts = Prompts({"query": "find: ", "passage": "read: "})
    write_pooling(plain, Pooling(prompts=prompts), hidden=16, length=32)
    hf_model = peer.SentenceTransformer(str(plain), device="cpu")
    bare, named = hf_model.encode("a", prompt=""), hf_model.encode("a", prompt_name="passage")
    bertkit_output = pipeline("embed", plain)("a", prompt=prompts.find(usual=DOCUMENT))
    assert abs(hf_model.encode_document("a") - bare).max() == 0
    assert abs(bertkit_output - named).max() <= 1e-6
    assert abs(bertkit_output - bare).max() > 1e-2


def test_embed_rejects_prompts_without_pooling(plain: Path) -> None:
    prompts = Prompts({"query": "find: "}, pooled=False)
    write_pooling(plain, Pooling(prompts=prompts), hidden=16, length=32)
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    hf_model = peer.SentenceTransformer(str(plain), device="cpu")
    embed = pipeline("embed", plain)
    assert abs(hf_model.encode("a b") - embed("a b")).max() <= 1e-6
    with pytest.raises(CheckpointError, match="include_prompt is false"):
        embed("a b", prompt="query")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": ["query: "]}, "prompts must be an object of strings"),
        ({"prompts": {"query": 3}}, "prompts must be an object of strings"),
        ({"prompts": {"a": "b"}, "default_prompt_name": "c"}, "no prompt 'c'; known: a"),
        ({"prompts": {"a": "b"}, "default_prompt_name": ["a"]}, r"no prompt \['a'\]; known: a"),
        ({"truncate_dim": 8}, "truncate_dim = 8 is not supported"),
    ],
)
def test_load_rejects_invalid_prompt_settings(
    settings: dict[str, Any], message: str, plain: Path
) -> None:
    write_pooling(plain, Pooling(), hidden=16, length=32)
    assert load(plain).pooling == Pooling()
    (plain / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=message):
        load(plain)


def check_vectors(folder: Path, english: list[str]) -> None:
    texts = [text[:20] for text in english[:4]]
    bertkit_output = pipeline("embed", folder)(texts)
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    hf_output = peer.SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert bertkit_output.shape == hf_output.shape
    assert abs(bertkit_output - hf_output).max() <= 1e-5


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing; pass a complete model directory"):
        read_json(tmp_path / "config.json")
