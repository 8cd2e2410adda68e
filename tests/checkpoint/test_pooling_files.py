"""A folder says how it pools, and sentence-transformers reads the same."""

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
    """A folder that says nothing of pooling."""
    tokenizer = train(english[:3], kind="wordpiece", size=200)
    return tiny_folder(tmp_path / "plain", tokenizer, layers=2, length=48)


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_both_make_the_same_vectors(
    mode: Any, normalize: bool, plain: Path, english: list[str]
) -> None:
    pooling = Pooling(mode, normalize)
    write_pooling(plain, pooling, hidden=16, length=32)
    assert read_pooling(plain) == (pooling, plain, 32)
    assert load(plain).length == 32
    same_as_the_peer(plain, english)


@pytest.mark.parametrize("activation", ACTIVATIONS.values())
@pytest.mark.parametrize("bias", [False, True])
def test_both_bend_them_alike(
    activation: Activation, bias: bool, plain: Path, english: list[str]
) -> None:
    dense = Dense(16, 5, activation, bias=bias).requires_grad_(False)
    write_pooling(plain, Pooling(normalize=True, dense=dense), hidden=16, length=32)
    same_as_the_peer(plain, english)
    dense.linear.weight += 0.1  # a copy with other weights is told apart
    found, *_ = read_pooling(plain)
    assert found is not None
    assert found.dense is not None
    assert abs(found.dense.linear.weight - dense.linear.weight).max() > 0.05


def test_a_dense_layer_of_theirs(plain: Path, english: list[str], tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    parts = [
        modules.Transformer(str(plain), max_seq_length=32),
        modules.Pooling(16, "cls"),
        modules.Dense(16, 7, activation_function=torch.nn.Identity()),
    ]
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "theirs"))
    same_as_the_peer(tmp_path / "theirs", english)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"activation_function": "os.system"},
            "activation_function = 'os.system' is not supported",
        ),
        ({"use_residual": True}, "use_residual = True"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
        ({"in_features": "x"}, "in_features and out_features must be positive"),
        ({"out_features": 6}, "the weights do not match"),
        ({"in_features": 10**7, "out_features": 10**9}, "the weights do not match"),
        ({"bias": False}, "the weights do not match"),
    ],
)
def test_dense_layers_that_bertkit_has_not(change: dict[str, Any], said: str, plain: Path) -> None:
    write_pooling(plain, Pooling(dense=Dense(16, 5)), hidden=16, length=32)
    path = plain / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change), encoding="utf-8")
    with pytest.raises(CheckpointError, match=said):
        load(plain)


def test_another_pooling_keeps_the_dense_layer(plain: Path) -> None:
    write_pooling(plain, Pooling(dense=Dense(16, 5)), hidden=16, length=32)
    asked = {mode: bertkit.pipeline("embed", plain, pooling=mode)("a") for mode in ("mean", "cls")}
    assert {found.shape for found in asked.values()} == {(1, 5)}
    assert not np.allclose(asked["mean"], asked["cls"])


def test_dense_layers_of_another_width_or_in_another_order(plain: Path) -> None:
    write_pooling(plain, Pooling(normalize=True, dense=Dense(12, 5)), hidden=12, length=32)
    with pytest.raises(CheckpointError, match="differs from the hidden size, 16"):
        load(plain)
    path = plain / "modules.json"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([*modules[:2], modules[3], modules[2]]), encoding="utf-8")
    with pytest.raises(CheckpointError, match="module 'Dense' after 'Normalize'"):
        load(plain)


def test_prompts_give_the_vectors_of_the_peer(plain: Path, english: list[str]) -> None:
    prompts = Prompts({"query": "find: ", "document": "read: ", "topic": "group: "}, "topic")
    write_pooling(plain, Pooling(prompts=prompts), hidden=16, length=32)
    found = read_pooling(plain)[0]
    assert found is not None
    assert found.prompts == prompts
    prompts_of_the_peer(plain, [text[:20] for text in english[:4]])


def test_prompts_of_a_real_model(minilm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "minilm"
    shutil.copytree(minilm, folder)
    settings = {
        "prompts": {"query": "query: ", "document": "passage: "},
        "default_prompt_name": "document",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    prompts_of_the_peer(folder, ["a cat on a mat", "What is dark matter, and where?"])


def prompts_of_the_peer(folder: Path, texts: list[str]) -> None:
    """Of a folder with prompts for queries and documents, and a default one."""
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    theirs = peer.SentenceTransformer(str(folder), device="cpu")
    ours = pipeline("embed", folder)
    asked = {
        "query": (theirs.encode_query(texts), ours(texts, prompt="query")),
        "document": (theirs.encode_document(texts), ours(texts, prompt="document")),
        "default": (theirs.encode(texts), ours(texts)),
        "own": (theirs.encode(texts, prompt="My own: "), ours(texts, prompt="My own: ")),
        "none": (theirs.encode(texts, prompt=""), ours(texts, prompt="")),
    }
    for wanted, found in asked.values():
        assert abs(wanted - found).max() <= 1e-6
    bare = asked["none"][1]
    assert all(abs(asked[name][1] - bare).max() > 1e-2 for name in asked if name != "none")


def test_the_peer_takes_a_passage_for_nothing_and_bertkit_does_not(plain: Path) -> None:
    """It puts an empty `document` of its own before the `passage` of the folder."""
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    prompts = Prompts({"query": "find: ", "passage": "read: "})
    write_pooling(plain, Pooling(prompts=prompts), hidden=16, length=32)
    theirs = peer.SentenceTransformer(str(plain), device="cpu")
    bare, named = theirs.encode("a", prompt=""), theirs.encode("a", prompt_name="passage")
    ours = pipeline("embed", plain)("a", prompt=prompts.find(usual=DOCUMENT))
    assert abs(theirs.encode_document("a") - bare).max() == 0
    assert abs(ours - named).max() <= 1e-6
    assert abs(ours - bare).max() > 1e-2


def test_tokens_of_a_prompt_that_are_not_pooled_are_refused(plain: Path) -> None:
    prompts = Prompts({"query": "find: "}, pooled=False)
    write_pooling(plain, Pooling(prompts=prompts), hidden=16, length=32)
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    theirs = peer.SentenceTransformer(str(plain), device="cpu")
    embed = pipeline("embed", plain)
    assert abs(theirs.encode("a b") - embed("a b")).max() <= 1e-6
    with pytest.raises(CheckpointError, match="include_prompt is false"):
        embed("a b", prompt="query")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompts": ["query: "]}, "prompts must be an object of texts"),
        ({"prompts": {"query": 3}}, "prompts must be an object of texts"),
        ({"prompts": {"a": "b"}, "default_prompt_name": "c"}, "'c'; known prompts: a"),
        ({"prompts": {"a": "b"}, "default_prompt_name": ["a"]}, r"\['a'\]; known prompts: a"),
        ({"truncate_dim": 8}, "truncate_dim = 8 is not supported"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    settings: dict[str, Any], said: str, plain: Path
) -> None:
    write_pooling(plain, Pooling(), hidden=16, length=32)
    assert load(plain).pooling == Pooling()
    (plain / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=said):
        load(plain)


def same_as_the_peer(folder: Path, english: list[str]) -> None:
    texts = [text[:20] for text in english[:4]]
    ours = pipeline("embed", folder)(texts)
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    theirs = peer.SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert ours.shape == theirs.shape
    assert abs(ours - theirs).max() <= 1e-5


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing; pass a complete model directory"):
        read_json(tmp_path / "config.json")
