"""Sparse embeddings match sentence-transformers, for each setting of a SPLADE model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.extensions.search.splade_models import LENGTH, LONG, TEXTS, write_mlm, write_splade

import bertkit
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.search.sparse_embedding import EmbedSparse, TokenWeight
from bertkit.pipelines.fill_mask import MASKS_PER_BATCH

pytestmark = pytest.mark.filterwarnings("ignore")
STRATEGIES = list(itertools.product(["max", "sum"], ["relu", "log1p_relu"]))


def dense(rows: Sequence[Sequence[TokenWeight]], size: int) -> NDArray[np.float32]:
    """Return sparse embeddings as an array. Shapes: returns (S, V)."""
    array = np.zeros((len(rows), size), np.float32)
    for vector, row in zip(array, rows, strict=True):
        vector[[weight.index for weight in row]] = [weight.weight for weight in row]
    return array


def peer(folder: Path, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
    """Return the embeddings of sentence-transformers. Shapes: returns (S, V)."""
    library = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    model = library.SparseEncoder(str(folder), device="cpu")
    array: NDArray[np.float32] = model.encode(list(texts), **options).to_dense().numpy()
    return array


@pytest.mark.parametrize(("strategy", "activation"), STRATEGIES)
def test_weights_match_sentence_transformers(
    strategy: str, activation: str, tmp_path: Path
) -> None:
    pooling = {"pooling_strategy": strategy, "activation_function": activation}
    folder = write_splade(tmp_path / "model", pooling)
    texts = [*TEXTS, *(LONG[start : start + 9] for start in range(40))]
    expected = peer(folder, texts)
    embed = bertkit.pipeline("sparse-embedding", folder)
    found = dense(embed(texts), expected.shape[1])
    assert np.abs(found - expected).max() < 1e-5
    assert 0.2 < (expected == 0).mean() < 0.8
    # Control: each other setting gives other weights.
    for other in STRATEGIES:
        changed = dict(zip(pooling, other, strict=True))
        control = peer(write_splade(tmp_path / "-".join(other), changed), texts)
        assert (np.abs(found - control).max() > 1e-2) == (changed != pooling)


def test_directory_saved_by_sentence_transformers_is_loaded(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    plain, folder = write_mlm(tmp_path / "plain"), tmp_path / "saved"
    options = {"prompts": {"topic": "t o p "}, "default_prompt_name": "topic"}
    library.SparseEncoder(str(plain), device="cpu", max_active_dims=5, **options).save(str(folder))
    assert (folder / "1_SpladePooling").exists()
    expected, texts = peer(folder, TEXTS[:3]), TEXTS[:3]
    assert (expected > 0).sum() == 15
    embed = bertkit.pipeline("sparse-embedding", folder)
    assert np.abs(dense(embed(texts), expected.shape[1]) - expected).max() < 1e-5
    # Control: without the saved prompt, the weights differ.
    bare = dense(embed(texts, prompt=""), expected.shape[1])
    assert np.abs(bare - expected).max() > 1e-2
    assert np.abs(bare - peer(folder, texts, prompt="")).max() < 1e-5


def test_model_without_modules_has_default_settings(tmp_path: Path) -> None:
    folder = write_mlm(tmp_path / "plain")
    expected = peer(folder, TEXTS)
    embed = bertkit.pipeline("sparse-embedding", folder)
    assert np.abs(dense(embed(TEXTS), expected.shape[1]) - expected).max() < 1e-5
    with pytest.raises(CheckpointError, match="has no mlm head"):
        bertkit.pipeline("sparse-embedding", bertkit.load(folder, heads=[]))


def test_answer_contains_tokens_by_weight(tmp_path: Path) -> None:
    embed = bertkit.pipeline("sparse-embedding", write_splade(tmp_path / "model"))
    (all_of_it,) = embed(["a b"])
    assert embed("a b") == all_of_it
    weights = [weight.weight for weight in all_of_it]
    assert weights == sorted(weights, reverse=True)
    assert all(weight > 0 for weight in weights)
    names = embed.tokenizer.pieces([weight.index for weight in all_of_it])
    assert [weight.token for weight in all_of_it] == names
    assert embed("a b", max_active_dims=3) == all_of_it[:3]
    assert embed([]) == []


def test_prompt_is_added_by_name(tmp_path: Path) -> None:
    embed = bertkit.pipeline("sparse-embedding", write_splade(tmp_path / "model"))
    by_name, by_text, expected = (
        dense([embed(text, prompt=prompt)], 32)
        for text, prompt in (("a", "query"), ("a", "q u "), ("q u a", ""))
    )
    np.testing.assert_allclose(by_name, expected, atol=1e-6)
    np.testing.assert_allclose(by_text, expected, atol=1e-6)
    assert np.abs(dense([embed("a")], 32) - expected).max() > 1e-2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "qurey"}, "'qurey' is not a prompt of this model"),
        ({"max_active_dims": 0}, "max_active_dims"),
        ({"long": "window"}, "long"),
        ({"max_dims": 3}, "max_dims"),
    ],
)
def test_invalid_options_are_rejected(options: Any, message: str, tmp_path: Path) -> None:
    embed = bertkit.pipeline("sparse-embedding", write_splade(tmp_path / "model"))
    with pytest.raises(ConfigError, match=message):
        embed("a b", **options)


def test_long_text_is_rejected_or_truncated(tmp_path: Path) -> None:
    folder = write_splade(tmp_path / "model")
    embed = bertkit.pipeline("sparse-embedding", folder)
    with pytest.raises(DataError, match="28 tokens, but the limit is 16; shorten it, or truncate"):
        embed(LONG)
    short = embed(LONG[: 2 * (LENGTH - 2)])
    assert embed(LONG, long="truncate") == short
    assert embed(LONG[:20]) != short
    assert np.abs(dense([short], 32) - peer(folder, [LONG])).max() < 1e-5


def test_logits_are_computed_for_a_few_positions(tmp_path: Path) -> None:
    """Sequences across the parts of a batch have the same weights as single sequences."""
    embed = bertkit.pipeline("sparse-embedding", write_splade(tmp_path / "model"))
    sizes: list[int] = []
    head = embed.engine.model.heads["mlm"]
    head.register_forward_hook(lambda module, inputs, logits: sizes.append(len(logits)))
    texts = [LONG[: 1 + 2 * (number % 13)] for number in range(200)]
    rows = embed(texts)
    assert max(sizes) == MASKS_PER_BATCH
    assert sum(sizes) == sum(2 + 1 + number % 13 for number in range(200))
    for text, row in list(zip(texts, rows, strict=True))[:13]:
        assert np.abs(dense([embed(text)], 32) - dense([row], 32)).max() < 1e-5


def test_tokens_of_a_padded_vocabulary_have_no_weight(tmp_path: Path) -> None:
    embed = bertkit.pipeline("sparse-embedding", write_splade(tmp_path / "model", vocab=40))
    assert embed.loaded.model.config.vocab == 40
    expected = peer(tmp_path / "model", ["a b"])
    assert expected.shape == (1, 40)
    assert expected[:, 32:].any()
    assert np.abs(dense([embed("a b")], 40)[:, :32] - expected[:, :32]).max() < 1e-5
    assert max(weight.index for weight in embed("a b")) < 32


def test_weights_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    loaded = bertkit.load(write_splade(tmp_path / "model"))
    with torch.no_grad():
        loaded.model.heads["mlm"].bias[7] = torch.inf
    embed = EmbedSparse(loaded)
    with pytest.raises(ArithmeticError, match="NaN or inf"):
        embed("a b")
