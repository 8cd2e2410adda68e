"""Embeddings and scores of each architecture and pooling in the table of published models."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.docs.test_settings import section
from tests.parity.test_families import VOCAB, make_hf_config, make_hf_model

import bertkit
from bertkit.checkpoint.pooling_files import write_pooling
from bertkit.families import FAMILIES, Family, family_of
from bertkit.nn.pooling import Dense, Pooling

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "models.md"
TEXTS = ["w1 w2 w3", "w5", " ".join(f"w{i}" for i in range(30)), "w7 w8"]
OTHER = {"mean": "cls", "cls": "mean"}

peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")


def rows(title: str) -> list[list[str]]:
    """Return the rows of a table: names, architecture, whether supported, and two more cells."""
    lines = section(PAGE.read_text(encoding="utf-8"), title).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0].startswith("`")]


def family_name(row: list[str]) -> str:
    """Return the name of the family of a row's architecture, or "" if there is none."""
    family = family_of(row[1].strip("`"))
    return "" if family is None else family.name


VECTORS, RANKERS = rows("Embedding models"), rows("Re-rankers and pair classifiers")
POOLED = sorted({(family_name(row), row[3]) for row in VECTORS if row[2] == "yes"})
SCORED = sorted({family_name(row) for row in RANKERS if row[2:4] == ["yes", "1"]})


@pytest.fixture
def tokenizer(tmp_path: Path) -> bertkit.Tokenizer:
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(VOCAB - 5))]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return bertkit.Tokenizer.load(tmp_path / "vocab.txt")


def test_tables_list_at_least_fifty_models() -> None:
    named = [name for row in VECTORS + RANKERS for name in re.findall(r"`[^`]+`", row[0])]
    assert len(named) >= 50
    for row in VECTORS + RANKERS:
        known = bool(family_name(row))
        assert row[2] in ("yes", "no"), row
        assert known or row[2] == "no", row
        # The row of a supported family gives the reason.
        assert not known or row[2] == "yes" or row[4], row


@pytest.mark.parametrize(("name", "pooling"), POOLED, ids=map("-".join, POOLED))
def test_vectors_match_sentence_transformers(
    name: str, pooling: str, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    family, folder = FAMILIES[name], tmp_path / "model"
    mode, *more = pooling.split(", ")
    hf_model = make_hf_model(family, frozenset())
    hf_model.save_pretrained(folder)
    tokenizer.save(folder, segments=bool(getattr(hf_model.config, "type_vocab_size", 0)))
    hidden = hf_model.config.hidden_size
    torch.manual_seed(0)
    dense = Dense(hidden, 8, "tanh") if "dense" in more else None
    made = Pooling(mode, "normalized" in more, dense)
    write_pooling(folder, made, hidden=hidden, length=64)
    expected = peer.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    actual = bertkit.pipeline("embed", folder)(TEXTS)
    assert np.abs(actual - expected).max() <= 1e-5
    write_pooling(folder, Pooling(OTHER[mode], made.normalize, dense), hidden=hidden, length=64)
    assert np.abs(bertkit.pipeline("embed", folder)(TEXTS) - expected).max() > 1e-3  # the control


@pytest.mark.parametrize("name", SCORED)
def test_scores_match_cross_encoder(
    name: str, tokenizer: bertkit.Tokenizer, tmp_path: Path
) -> None:
    family, folder = FAMILIES[name], tmp_path / "model"
    make_hf_scorer(family).save_pretrained(folder)
    types = getattr(make_hf_config(family), "type_vocab_size", 0)
    tokenizer.save(folder, segments=types > 1)
    ranker = peer.CrossEncoder(str(folder), device="cpu")
    query, texts = "w1 w9", TEXTS
    expected = ranker.predict([(query, text) for text in texts], activation_fn=torch.nn.Identity())
    actual = bertkit.pipeline("rerank", folder)(query, texts)
    assert np.abs(actual - expected).max() <= 1e-5
    assert np.abs(bertkit.pipeline("rerank", folder)("w2", texts) - expected).max() > 1e-3


def make_hf_scorer(family: Family) -> torch.nn.Module:
    """Return a classifier of transformers with one output."""
    config = make_hf_config(family)
    config.num_labels = 1
    torch.manual_seed(1)
    model = getattr(transformers, family.architectures[frozenset({"classify"})])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()
