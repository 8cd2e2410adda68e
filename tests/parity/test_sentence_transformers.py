"""bertkit matches sentence-transformers for each configuration key or rejects the key."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import tiny_folder

from bertkit.checkpoint import pooling_keys
from bertkit.checkpoint.directory import load
from bertkit.checkpoint.pooling_files import OLDER_LENGTHS, write_pooling
from bertkit.errors import BertkitError
from bertkit.nn.pooling import Dense, Pooling
from bertkit.pipelines import pipeline
from bertkit.text.prompts import Prompts
from bertkit.text.vocabulary_training import train

peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

TEXTS = ["The Value of an Object", "the value of an object", "a class " * 30 + "at the end"]
LENGTH, SETTINGS = "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING, DENSE, NORMALIZE = (
    f"{directory}/config.json" for directory in ("1_Pooling", "2_Dense", "3_Normalize")
)
TEXT = {"text": {"method": "forward", "method_output_name": "pooler_output"}}

VALUES: dict[str, dict[str, list[Any]]] = {
    LENGTH: {
        "max_seq_length": [8, 16, None],
        "do_lower_case": [True],
        "transformer_task": ["fill-mask", "sequence-classification"],
        "modality_config": [TEXT, {"text": {}}],
        "module_output_name": ["sentence_embedding"],
        "processing_kwargs": [{"text": {"max_length": 8, "truncation": True}}],
        "unpad_inputs": [True, False],
        "query_length": [8],
        "document_length": [8],
        "query_expansion": [{"strategy": "mask"}],
        "model_kwargs": [{"attn_implementation": "eager"}],
        "processor_kwargs": [{"truncation_side": "left"}, {"do_lower_case": False}],
        "config_kwargs": [{"layer_norm_eps": 0.5}],
        "model_args": [{"attn_implementation": "eager"}],
        "tokenizer_args": [{"truncation_side": "left"}],
        "config_args": [{"layer_norm_eps": 0.5}],
        "backend": ["onnx"],
        "tokenizer_name_or_path": ["elsewhere"],
    },
    SETTINGS: {
        "prompts": [{"query": "the ", "topic": "value: "}],
        "default_prompt_name": ["query", "topic"],
        "similarity_fn_name": ["dot", "euclidean"],
        "truncate_dim": [3],
        "model_type": ["CrossEncoder", "SparseEncoder"],
        "requirements": [[]],
        "__version__": [{"sentence_transformers": "2.0.0"}],
    },
    POOLING: {
        "embedding_dimension": [16],
        "word_embedding_dimension": [16],
        "pooling_mode": ["max", "cls", ["mean"], ["mean", "max"], "lasttoken", "weightedmean"],
        "include_prompt": [False, 0, None],
        "pooling_mode_cls_token": [True, 1],
        "pooling_mode_max_tokens": [True],
        "pooling_mode_mean_tokens": [False],
        "pooling_mode_mean_sqrt_len_tokens": [True],
        "pooling_mode_weightedmean_tokens": [True],
        "pooling_mode_lasttoken": [True],
    },
    DENSE: {
        "in_features": [8],
        "out_features": [8],
        "bias": [False],
        "activation_function": ["torch.nn.modules.activation.ReLU", "torch.nn.Sigmoid", "my.code"],
        "module_input_name": ["token_embeddings"],
        "module_output_name": ["other", "token_embeddings"],
        "use_residual": [True],
        "init_weight": [None],
        "init_bias": [None],
    },
    NORMALIZE: {"module_input_name": ["token_embeddings"], "module_output_name": ["other"]},
    "modules.json": {
        "idx": [7],
        "name": ["zero", "1"],
        "path": ["elsewhere"],
        "type": [
            "sentence_transformers.models.Pooling",
            "my_code.Transformer",
            "sentence_transformers.models.WordEmbeddings",
        ],
        "kwargs": [["task"]],
    },
}
CHANGES = [
    (file, key, value)
    for file, keys in VALUES.items()
    for key, values in keys.items()
    for value in values
]


def parameters(module: Any) -> set[str]:
    keys = {*inspect.signature(inspect.unwrap(module.__init__)).parameters, *module.config_keys}
    return keys - {"self", "model_name_or_path", "args", "kwargs"}


def keys_of_peer() -> dict[str, set[str]]:
    """Return the keys that sentence-transformers reads from each file, according to its code."""
    base = inspect.getmodule(peer.SentenceTransformer.__mro__[1])
    loading = inspect.getsource(base) + inspect.getsource(
        inspect.getmodule(peer.SentenceTransformer)
    )
    pooling = inspect.getsource(inspect.getmodule(modules.Pooling))
    return {
        LENGTH: parameters(modules.Transformer) | {"model_args", "tokenizer_args", "config_args"},
        SETTINGS: {*re.findall(r'model_config\.get\("(\w+)"', loading), "__version__"},
        POOLING: parameters(modules.Pooling)
        | {*re.findall(r"\"(pooling_mode_\w+)\"", pooling), *modules.Pooling.config_key_renames},
        DENSE: parameters(modules.Dense),
        NORMALIZE: parameters(modules.Normalize),
        "modules.json": {*re.findall(r'module_config(?:\[|\.get\()"(\w+)"', loading)},
    }


TABLES = {
    LENGTH: pooling_keys.TRANSFORMER_KEYS,
    SETTINGS: pooling_keys.SETTINGS_KEYS,
    POOLING: pooling_keys.POOLING_KEYS,
    DENSE: pooling_keys.DENSE_KEYS,
    NORMALIZE: pooling_keys.NORMALIZE_KEYS,
    "modules.json": pooling_keys.MODULES_KEYS,
}


@pytest.mark.parametrize("file", TABLES)
def test_tables_and_values_contain_every_key(file: str) -> None:
    keys, table = keys_of_peer()[file], TABLES[file]
    assert len(keys) >= 2
    assert keys <= {*table.applied, *table.irrelevant, *table.neutral}
    assert keys <= VALUES[file].keys()


@pytest.fixture(scope="module")
def original(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train(english[:10], kind="wordpiece", size=300, lowercase=False)
    folder = tmp_path_factory.mktemp("peer") / "model"
    tiny_folder(folder, tokenizer, length=24, spread=0.3)
    pooling = Pooling(
        normalize=True, dense=Dense(16, 16), prompts=Prompts({"query": "find: "}, None)
    )
    write_pooling(folder, pooling, hidden=16, length=20)
    return folder


def edit(path: Path, key: str, value: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    changed = content[0] if isinstance(content, list) else content
    if key == "pooling_mode":
        changed.clear()
        changed["embedding_dimension"] = 16
    if key == "model_type" or (key == "default_prompt_name" and value == "topic"):
        changed["prompts"] = {"topic": "value: "}
    changed[key] = value
    if key == "modality_config":
        changed["module_output_name"] = "token_embeddings"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def vectors_of_peer(folder: Path) -> Any:
    """Return the vectors of sentence-transformers, or None if it cannot load the directory."""
    try:
        return peer.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    except Exception:  # any error of another library
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("file", "key", "value"), CHANGES)
def test_changed_key_matches_vectors_or_is_rejected(
    file: str, key: str, value: Any, original: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(original, folder)
    edit(folder / file, key, value)
    try:
        found = pipeline("embed", folder)(TEXTS, long="truncate")
    except BertkitError:
        return
    expected = vectors_of_peer(folder)
    assert expected is not None
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        (LENGTH, "max_seq_length", 8),
        (LENGTH, "do_lower_case", True),
        (POOLING, "pooling_mode", "max"),
    ],
)
def test_control_key_changes_vectors_and_is_not_rejected(
    file: str, key: str, value: Any, original: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(original, folder)
    before = pipeline("embed", folder)(TEXTS, long="truncate")
    edit(folder / file, key, value)
    after = pipeline("embed", folder)(TEXTS, long="truncate")
    assert np.abs(before - after).max() > 1e-2


@pytest.mark.parametrize("name", [*OLDER_LENGTHS, LENGTH])
def test_older_file_names_are_read(name: str, original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(original, folder)
    (folder / LENGTH).unlink()
    (folder / name).write_text('{"max_seq_length": 6, "do_lower_case": true}', encoding="utf-8")
    found = pipeline("embed", folder)(TEXTS, long="truncate")
    assert np.abs(found - vectors_of_peer(folder)).max() < 1e-5
    assert load(folder).length == 6


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        (LENGTH, "do_lower_case", True),
        ("tokenizer_config.json", "truncation_side", "left"),
        (LENGTH, "max_seq_length", 9),
    ],
)
def test_saved_copy_has_the_same_vectors(
    file: str, key: str, value: Any, original: Path, tmp_path: Path
) -> None:
    folder, copy = tmp_path / "model", tmp_path / "copy"
    shutil.copytree(original, folder)
    before = vectors_of_peer(folder)
    edit(folder / file, key, value)
    loaded = load(folder)
    loaded.save(copy)
    assert json.loads((copy / file).read_text(encoding="utf-8"))[key] == value
    expected = vectors_of_peer(folder)
    assert np.abs(expected - before).max() > 1e-2
    for directory in (folder, copy):
        assert np.abs(pipeline("embed", directory)(TEXTS, long="truncate") - expected).max() < 1e-5
    assert np.abs(vectors_of_peer(copy) - expected).max() < 1e-5
