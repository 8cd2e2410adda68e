"""Models and tokenizers that bertkit saved give the same results in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import ENCODERS, tiny_model

import bertkit
from bertkit.batch import Batch
from bertkit.checkpoint.directory import load, save
from bertkit.errors import BertkitError, CheckpointError, ConfigError
from bertkit.families import FAMILIES
from bertkit.recipes.pretrain_config import read_config
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

KINDS: tuple[Any, ...] = ("wordpiece", "bpe", "unigram")
PUBLISHED = [name for name in ENCODERS if name not in ("nomic", "gte")]
"""Families whose code is part of transformers."""


@pytest.fixture(scope="module")
def tokenizers_of_kinds(english: list[str]) -> dict[str, Tokenizer]:
    return {kind: train(english[:10], kind=kind, size=400) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_saved_model_has_the_same_logits_in_transformers(
    name: str, kind: str, tokenizers_of_kinds: dict[str, Tokenizer], tmp_path: Path
) -> None:
    """`tests.parity.test_families` compares the other heads."""
    family, tokenizer = FAMILIES[name], tokenizers_of_kinds[kind]
    if name == "mpnet" and tokenizer.pad != 1:
        pytest.skip("transformers counts positions of MPNet from id 1, and save() rejects others")
    model = tiny_model(tokenizer, "mlm", family=family, spread=0.3, length=64).eval()
    save(tmp_path, model, tokenizer, family)
    peer = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    loaded = load(tmp_path)
    for texts in (("The class of a value",), ("A name", "is bound to an object")):
        encoding = loaded.tokenizer.encode(*texts)
        inputs = reference(*texts, return_tensors="pt")
        assert inputs["input_ids"][0].tolist() == encoding.ids.tolist()
        with torch.no_grad():
            expected = peer(**inputs).logits[0]
            (found,) = loaded.model(Batch.of([encoding])).values()
        assert (found.reshape(expected.shape) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_save_rejects_mpnet_with_another_padding_id(
    kind: str, tokenizers_of_kinds: dict[str, Tokenizer], tmp_path: Path
) -> None:
    tokenizer, family = tokenizers_of_kinds[kind], FAMILIES["mpnet"]
    assert tokenizer.pad == 0
    with pytest.raises(BertkitError, match="id 0 in the tokenizer, but 1 in the model"):
        save(tmp_path, tiny_model(tokenizer, "mlm", family=family), tokenizer, family)
    data = {"family": "mpnet", "model": {"layers": 1}}
    with pytest.raises(ConfigError, match=r"mpnet requires a padding token with id 1, got 0; use"):
        read_config(data, tokenizer)


@pytest.mark.parametrize("pad", [0, 2, 58])
def test_load_rejects_mpnet_with_another_padding_id(
    pad: int, tokenizers_of_kinds: dict[str, Tokenizer], tmp_path: Path
) -> None:
    tokenizer, family = tokenizers_of_kinds["bpe"], FAMILIES["mpnet"]
    save(tmp_path, tiny_model(tokenizer, "mlm", family=family), tokenizer, family)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for value in (1, None):
        path.write_text(json.dumps({**settings, "pad_token_id": value}), encoding="utf-8")
        assert load(tmp_path).model.config.pad_id == 1
    path.write_text(json.dumps({**settings, "pad_token_id": pad}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"pad_token_id = {pad} "):
        load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_pair_classifier_has_the_same_probabilities(
    kind: str, tokenizers_of_kinds: dict[str, Tokenizer], tmp_path: Path
) -> None:
    tokenizer = tokenizers_of_kinds[kind]
    model = tiny_model(tokenizer, "classify", labels=("a", "b"), spread=0.3)
    settings = {"problem_type": "single_label_classification"}
    save(tmp_path, model, tokenizer, FAMILIES["bert"], labels=("a", "b"), settings=settings)
    (answer,) = bertkit.pipeline("classify", tmp_path)([("a class", "the name")])
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = reference("a class", "the name", return_tensors="pt")
    assert "token_type_ids" in inputs
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = peer(**inputs).logits.softmax(-1)[0]
    assert (torch.tensor(list(answer.scores.values())) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("version", ["4.57.0", "5.1.0"])
def test_segments_without_input_names_match_the_version_of_transformers(
    version: str, tokenizers_of_kinds: dict[str, Tokenizer], tmp_path: Path, capsys: Any
) -> None:
    """transformers 5 returns no segments for this tokenizer, unlike transformers 4."""
    tokenizer = tokenizers_of_kinds["unigram"]
    model = tiny_model(tokenizer, "classify", labels=("a", "b"), spread=0.3)
    save(tmp_path, model, tokenizer, FAMILIES["bert"], labels=("a", "b"))
    for name, change in (
        ("config.json", {"transformers_version": version}),
        ("tokenizer_config.json", {"model_input_names": None}),
    ):
        settings = json.loads((tmp_path / name).read_text(encoding="utf-8")) | change
        given = {key: value for key, value in settings.items() if value is not None}
        (tmp_path / name).write_text(json.dumps(given), encoding="utf-8")
    encoding = load(tmp_path).tokenizer.encode("a class", "the name")
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)("a class", "the name")
    assert "token_type_ids" not in inputs
    assert encoding.ids.tolist() == inputs["input_ids"]
    assert encoding.types.any() == (version < "5")
    assert ("pairs of texts have token types" in capsys.readouterr().err) == (version < "5")


@pytest.mark.parametrize("kind", KINDS)
def test_saved_tokenizer_keeps_missing_segments(
    kind: str, tokenizers_of_kinds: dict[str, Tokenizer], tmp_path: Path
) -> None:
    tokenizers_of_kinds[kind].save(tmp_path / "first")
    path = tmp_path / "first" / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    assert settings["model_input_names"] == ["input_ids", "token_type_ids", "attention_mask"]
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    path.write_text(json.dumps(settings), encoding="utf-8")
    Tokenizer.load(tmp_path / "first").save(tmp_path / "second")
    again = Tokenizer.load(tmp_path / "second")
    assert again.segments == 1
    assert not again.encode("a", "b").types.any()
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "second")
    assert "token_type_ids" not in reference("a", "b")
