"""Tests of the token-embeddings pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import ENCODERS, tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.llama import LLAMA
from bertkit.families.family import Family
from bertkit.text.vocabulary_training import train

LETTERS = "abcdefghij"
TEXTS = ["a b", "c d e f g h i j a b", "j", "b c, a"]
LAYERS = 4
# transformers numbers the positions of MPNet from pad id 1, and the tokenizer here has pad id 0.
FAMILIES = [family for name, family in ENCODERS.items() if name != "mpnet"]


def folder_of(root: Path, family: Family, english: list[str]) -> Path:
    if family in FAMILIES:
        tokenizer = tiny_tokenizer(LETTERS)
    else:
        tokenizer = train(english[:5], kind="bpe", size=300)
    head = "mlm" if family in FAMILIES else "lm"
    return tiny_folder(
        root / "model", tokenizer, head, family=family, layers=LAYERS, hidden=32, spread=0.1
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("family", [*FAMILIES, GPT2, LLAMA], ids=lambda family: family.name)
def test_every_layer_matches_transformers(
    family: Family, tmp_path: Path, english: list[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    folder = folder_of(tmp_path, family, english)
    embed = bertkit.pipeline("token-embeddings", folder)
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    for answer, text in zip(embed(TEXTS, layer=range(LAYERS + 1)), TEXTS, strict=True):
        ids = torch.tensor(embed.tokenizer.encode(text).ids)[None]
        with torch.no_grad():
            states = reference(input_ids=ids, output_hidden_states=True).hidden_states
        assert answer.embeddings.shape == (LAYERS + 1, ids.shape[1], 32)
        assert answer.tokens == embed.tokenizer.pieces(ids[0].tolist())
        for layer, state in zip(answer.embeddings, states, strict=True):
            np.testing.assert_allclose(layer, state[0].numpy(), atol=1e-5)
        np.testing.assert_array_equal(embed(text, layer=-1)[0].embeddings.shape, state[0].shape)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokens") / "model"
    return tiny_folder(root, tiny_tokenizer(LETTERS), "mlm", layers=2, length=16, spread=0.1)


def test_token_embeddings_have_tokens_and_offsets(model: Path) -> None:
    (answer,) = bertkit.pipeline("token-embeddings", model)("a bcz")
    assert answer.tokens == ["[CLS]", "a", "[UNK]", "[SEP]"]
    assert answer.offsets.tolist() == [[0, 0], [0, 1], [2, 5], [0, 0]]
    assert answer.embeddings.shape == (4, 16)
    assert answer.embeddings.dtype == np.float32
    assert not answer.truncated


def test_layers_are_counted_from_both_ends(model: Path) -> None:
    embed = bertkit.pipeline("token-embeddings", model)
    (every,) = embed("a b", layer=(0, 1, 2))
    for layer in range(3):
        for index in (layer, layer - 3):
            np.testing.assert_array_equal(
                embed("a b", layer=index)[0].embeddings, every.embeddings[layer]
            )
    (last,) = embed("a b")
    np.testing.assert_array_equal(last.embeddings, every.embeddings[2])
    assert not np.allclose(every.embeddings[1], every.embeddings[2])


def test_pooled_token_embeddings_equal_embed(model: Path) -> None:
    rows = bertkit.pipeline("token-embeddings", model)(TEXTS)
    vectors = bertkit.pipeline("embed", model, pooling="mean")(TEXTS)
    for row, vector in zip(rows, vectors, strict=True):
        np.testing.assert_allclose(row.embeddings.mean(0), vector, atol=1e-6)


@pytest.mark.parametrize("layer", [3, -4, (0, 9)])
def test_unknown_layer_is_rejected(model: Path, layer: int | tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"layer: (3|-4|9) does not exist; use 0 .* to 2"):
        bertkit.pipeline("token-embeddings", model)("a", layer=layer)


def test_long_text_is_rejected_or_truncated(model: Path) -> None:
    embed = bertkit.pipeline("token-embeddings", model)
    long = " ".join(LETTERS * 3)
    with pytest.raises(DataError, match="32 tokens"):
        embed(long)
    (answer,) = embed(long, long="truncate")
    assert answer.truncated
    assert len(answer.tokens) == 16
    with pytest.raises(ConfigError, match="window is not supported"):
        embed(long, long="window")
    assert embed([]) == []


def test_lstm_is_rejected(tmp_path: Path, english: list[str]) -> None:
    tokenizer = train(english[:5], kind="bpe", size=300)
    folder = tiny_folder(tmp_path / "lstm", tokenizer, "lm", family=LSTM_LM)
    with pytest.raises(ConfigError, match="RecurrentEncoder is not a Transformer"):
        bertkit.pipeline("token-embeddings", folder)


def test_token_embeddings_command_prints_one_line_per_text(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(model), "a b", "c", "--pipeline", "token-embeddings"]
    assert cli.run([*words, "--layer", "1"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["tokens"] == ["[CLS]", "a", "b", "[SEP]"]
    assert second["offsets"] == [[0, 0], [0, 1], [0, 0]]
    (expected,) = bertkit.pipeline("token-embeddings", model)("a b", layer=1)
    np.testing.assert_allclose(first["embeddings"], expected.embeddings, atol=1e-6)
    assert cli.run([*words, "--layer", "7"]) == 2
    assert "layer: 7 does not exist" in capsys.readouterr().err


def test_tokenizer_call_encodes_a_text(model: Path) -> None:
    loaded = bertkit.load(model)
    assert loaded.tokenizer("a b").ids.tolist() == loaded.tokenizer.encode("a b").ids.tolist()


@pytest.mark.parametrize("given", ["hello", ["a", "b"], None])
def test_model_rejects_input_without_batch_type(model: Path, given: object) -> None:
    with pytest.raises(ConfigError, match=r"expected a Batch, got \w+; .*token-embeddings"):
        bertkit.load(model).model(given)  # type: ignore[call-overload]
